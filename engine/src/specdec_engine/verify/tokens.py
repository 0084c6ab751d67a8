"""Whether two engines answer with the same tokens, prompt by prompt, and whether a difference is rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specdec_engine.bench.arms import Arm
from specdec_engine.compare import Divergence
from specdec_engine.outputs import RequestOutput
from specdec_engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class Compared:
    """The answers to all prompts under one set of parameters.

    name         "greedy" or "seeded"
    differences  where the answer to each prompt first differs from plain decoding's, None where it does not
    tokens       ids of all plain answers
    drafted, accepted  drafts verified and accepted
    answers      the plain answers' ids
    """

    name: str
    differences: tuple[Divergence | None, ...]
    tokens: int
    drafted: int
    accepted: int
    answers: tuple[tuple[int, ...], ...]

    @property
    def verdict(self) -> str:
        """ "ok", "fault" if a difference is one, "untested" where no draft was verified."""
        if any(found is not None and found.verdict == "fault" for found in self.differences):
            return "fault"
        return "ok" if self.drafted else "untested"

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        found = [
            {"prompt": number, **asdict(difference)}
            for number, difference in enumerate(self.differences)
            if difference is not None
        ]
        return {
            "verdict": self.verdict,
            "prompts": len(self.differences),
            "identical": len(self.differences) - len(found),
            "tokens": self.tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "differences": found,
        }

    def lines(self) -> list[str]:
        """Return lines for people."""
        same = sum(found is None for found in self.differences)
        head = (
            f"{self.name}: {same} of {len(self.differences)} prompts identical, {self.tokens} tokens, "
            f"{self.accepted} of {self.drafted} drafts accepted: {self.verdict}"
        )
        return [
            head,
            *(f"  prompt {number}: {found}" for number, found in enumerate(self.differences) if found is not None),
        ]


def compare_tokens(
    name: str, plain: Arm, fast: Arm, prompts: Sequence[Sequence[int]], params: SamplingParams, exact: bool
) -> Compared:
    """Answer all prompts with both engines, prompt i with seed i + the seed of `params`, and compare.

    `exact`: both have forwards of one width, so that there is no rounding between them and any difference is a fault.
    """
    given = [{"prompt_token_ids": list(ids)} for ids in prompts]
    each = [replace(params, seed=(params.seed or 0) + number) for number in range(len(prompts))]
    answers = plain.llm.generate(given, each, use_tqdm=False)
    others = fast.llm.generate(given, each, use_tqdm=False)
    differences = tuple(
        _difference(plain, one, other, chosen, exact) for one, other, chosen in zip(answers, others, each, strict=True)
    )
    ids = tuple(tuple(one.outputs[0].token_ids) for one in answers)
    drafted = sum(other.metrics.drafted for other in others)
    accepted = sum(other.metrics.accepted for other in others)
    return Compared(name, differences, sum(map(len, ids)), drafted, accepted, ids)


def _difference(
    plain: Arm, one: RequestOutput, other: RequestOutput, params: SamplingParams, exact: bool
) -> Divergence | None:
    found = plain.llm.compare(one, other, params)
    return replace(found, verdict="fault") if found is not None and exact else found
