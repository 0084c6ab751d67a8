"""Whether sampled ids have the target's distribution where a verifier draws for itself: counted over many samples.

A prompt is sampled many times with speculation, from a few ids only (`allowed_token_ids`), so that the same texts come
again and again. The next id after each text that came often is then counted, and compared with the probabilities that
the plain target gives after that text. Which texts came often depends on earlier ids alone, so that the rows of
different texts are independent, and their chi-square statistics add up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specdec_engine.compare import row_after
from specdec_engine.llm import LLM
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.verify.cells import Fit, Floats, fit

FALSE_ALARM: Final = 1e-4  # chance that a right verifier is called wrong, of one prompt's test
IDS: Final = 4  # ids that may be emitted
TEMPERATURES: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)  # the first that leaves something to draw is taken
LEAST_ENTROPY: Final = 0.9  # nats of the first row, of log(4) = 1.39 at most
LONGEST: Final = 4  # ids after the first one, which comes with the prompt's pass and is no draft
LEAST_COUNT: Final = 20  # samples that have to have a text for its next id to be tested
MOST_TEXTS: Final = 24
WIDTHS: Final = (1, 0, 16)  # rows of the forwards whose rounding is allowed for; 0: one prompt pass
LEAST_SHARE: Final = 0.01  # probabilities below it do not tell how large the rounding is


@dataclass(frozen=True)
class Counted:
    """One prompt's test.

    prompt    its number
    temperature  of the samples: high enough that several ids are likely
    draws     ids counted, over all texts
    texts     texts whose next id was tested
    drafts    rows with a draft that the samples had
    accepted  drafts that were accepted
    fit       the test's result
    """

    prompt: int
    temperature: float
    draws: int
    texts: int
    drafts: int
    accepted: int
    fit: Fit

    @property
    def verdict(self) -> str:
        """ "ok", "fault", or "untested" where no draft was verified or no text came often enough."""
        if not self.drafts or not self.fit.freedom:
            return "untested"
        return "fault" if self.fit.p_value < FALSE_ALARM else "ok"

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "prompt": self.prompt,
            "verdict": self.verdict,
            "temperature": self.temperature,
            "draws": self.draws,
            "texts": self.texts,
            "drafts": self.drafts,
            "accepted": self.accepted,
            "chi_square": self.fit.statistic,
            "degrees_of_freedom": self.fit.freedom,
            "p_value": self.fit.p_value,
            "false_alarm": FALSE_ALARM,
            "furthest_off": self.fit.worst,
        }

    def __str__(self) -> str:
        """Return one line for people."""
        drafts = f"prompt {self.prompt}: {self.accepted} drafts accepted in {self.drafts} rows with drafts"
        if self.verdict == "untested":
            why = "no draft was verified" if not self.drafts else "no text came often enough"
            return f"{drafts}: untested, {why}"
        test = f"{self.draws} ids after {self.texts} texts, p = {self.fit.p_value:.2g}"
        return f"{drafts}, {test}: {self.verdict}" + (
            f"; furthest off: {self.fit.worst}" if self.verdict == "fault" else ""
        )


@dataclass(frozen=True)
class Sampling:
    """Samples prompts with `fast`, `draws` times each, and tests the ids against the distribution of `plain`."""

    plain: LLM
    fast: LLM
    draws: int
    seed: int

    def count(self, prompt: int, ids: Sequence[int], answer: Sequence[int]) -> Counted:
        """Test one prompt; `answer` is its plain greedy answer, whose first ids may be emitted: drafts are likely."""
        allowed = self._allowed(ids, answer)
        temperature = self._temperature(ids, allowed)
        (output,) = self.fast.generate(
            [{"prompt_token_ids": list(ids)}],
            SamplingParams(
                n=self.draws,
                temperature=temperature,
                seed=self.seed,
                max_tokens=LONGEST + 1,
                ignore_eos=True,
                allowed_token_ids=allowed,
                detokenize=False,
            ),
            use_tqdm=False,
        )
        samples = [tuple(sample.token_ids) for sample in output.outputs]
        outside = sum(token not in allowed for sample in samples for token in sample)
        counts, probabilities, noise = [np.array([0.0, outside])], [np.array([1.0, 0.0])], 0.0
        for text, following in _frequent(samples).items():
            row, change = self._probabilities([*ids, *text], allowed, temperature)
            counts.append(np.array([following[token] for token in allowed], np.float64))
            probabilities.append(row)
            noise = max(noise, change)
        total = int(sum(row.sum() for row in counts[1:]))
        metrics = output.metrics
        return Counted(
            prompt,
            temperature,
            total,
            len(counts) - 1,
            metrics.drafts,
            metrics.accepted,
            fit(counts, probabilities, noise),
        )

    def _allowed(self, ids: Sequence[int], answer: Sequence[int]) -> list[int]:
        """Return the ids that may be emitted: of the answer's begin, of the prompt's end, and likely ones.

        Drafts of heads are likely the former, drafts of lookup methods what followed one of the latter before.
        """
        (row,) = self._rows(ids, (1,))
        end = set(self.plain._engine.rules.eos_token_ids)
        likeliest = row.topk(min(IDS + len(end), len(row))).indices.tolist()
        chosen = [*answer[: IDS // 2], *ids[-(IDS // 2) :], *likeliest]
        found = dict.fromkeys(token for token in chosen if token not in end)
        return sorted(list(found)[:IDS])

    def _temperature(self, ids: Sequence[int], allowed: Sequence[int]) -> float:
        """Return a temperature at which more than one of the allowed ids is likely after the prompt."""
        (row,) = self._rows(ids, (1,))
        for temperature in TEMPERATURES:
            drawn = torch.softmax(row[list(allowed)].double() / temperature, dim=-1)
            if float(torch.special.entr(drawn).sum()) >= LEAST_ENTROPY:
                break
        return temperature

    def _probabilities(self, ids: Sequence[int], allowed: Sequence[int], temperature: float) -> tuple[Floats, float]:
        """Return the allowed ids' probabilities after a text, and how far they move between widths, as a share."""
        places = list(allowed)
        rows = [torch.log_softmax(row[places].double() / temperature, dim=-1) for row in self._rows(ids, WIDTHS)]
        counts = rows[0] > np.log(LEAST_SHARE)
        noise = max(float((row - rows[0])[counts].abs().max()) for row in rows)
        return rows[0].exp().numpy(), noise

    def _rows(self, ids: Sequence[int], widths: Sequence[int]) -> list[Tensor]:
        """Return the plain target's logits [V] after a text, of a forward of each width."""
        engine = self.plain._engine
        with engine.target.lock:
            request = engine.submission.again(0, 0, np.array(ids, np.int32), SamplingParams())
            try:
                return [row_after(engine.target, request, width).cpu() for width in widths]
            finally:
                engine.sampler.finish(request)


def _frequent(samples: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Counter[int]]:
    """Return the texts that came often, the most frequent first, with the counts of the ids that followed."""
    found: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for sample in samples:
        for length in range(1, len(sample)):
            found[sample[:length]][sample[length]] += 1
    often = sorted(found.items(), key=lambda item: -item[1].total())[:MOST_TEXTS]
    return {text: following for text, following in often if following.total() >= LEAST_COUNT}
