"""One tuning from its checks to its files: what is measured when, what is predicted, run again, chosen and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from specdec_core.cli.output import emit
from specdec_core.errors import RequestError
from specdec_engine.bench.arms import Arm, describe_target
from specdec_engine.bench.intervals import Ratio
from specdec_engine.bench.measure import Work, measure, warm_up
from specdec_engine.bench.methods import Method
from specdec_engine.bench.progress import Bar
from specdec_engine.bench.prompted import Prompted
from specdec_engine.bench.prompts import Unit, units_of
from specdec_engine.bench.session import machine
from specdec_engine.bench.summary import ALL, summarise
from specdec_engine.tune.candidates import Candidate, find_candidates
from specdec_engine.tune.choose import GAIN, Choice, Option, choose, engine_config, vllm_config
from specdec_engine.tune.costs import ForwardCost
from specdec_engine.tune.predict import Measured, predict
from specdec_engine.tune.profile import Profiled, measure_forwards, profile
from specdec_engine.tune.table import lines

ENGINE_FILE, VLLM_FILE, REPORT_FILE = "engine.json", "vllm.json", "tune.json"
LOSES: Final = 0.9  # predictions below this are not run again
WIDEST: Final = 8  # prompts that run together to learn what more requests cost


@dataclass(frozen=True)
class Profile:
    """What was measured, by the label of the candidate; None: plain decoding."""

    measured: Mapping[str | None, Measured]
    forward: ForwardCost


@dataclass(frozen=True, kw_only=True)
class Tuning(Prompted):
    """What is to be tuned, and where the files go.

    methods      None: every installed one that needs no further key
    most_drafts  the most drafts of methods that give no number
    confirm      predictions that are run again, for each concurrency
    out          folder of the files
    """

    methods: Sequence[Method] | None
    concurrency: Sequence[int]
    most_drafts: int
    confirm: int
    out: Path | None

    def run(self) -> Choice:
        """Measure, predict, run the best again, choose, write and print.

        Raises a SpecdecError for what cannot work, before weights are loaded where their files are enough to know.
        """
        target = describe_target(self.model)
        candidates, left_out = find_candidates(self.methods, self.most_drafts, target, self.model.plugins)
        drafts = max(each.limits[-1] for each in candidates)
        with self.opened(target, max(self.concurrency), drafts) as (plain, work):
            profiled = self.profile(plain, candidates, work)
            options = self.confirmed(plain, candidates, work, self.options(candidates, profiled))
            about = machine(plain.llm)
        choice = choose(options)
        self.write(candidates, options, choice, {"machine": about, "left_out": left_out})
        for line in lines(options, choice, left_out):
            emit(line)
        return choice

    def profile(self, plain: Arm, candidates: Sequence[Candidate], work: Work) -> Profile:
        """Measure plain decoding and each candidate with its largest and a small number of drafts."""
        with self._arms(plain, candidates) as arms:
            warm_up([each.arm for each in arms], work, 1)
            together = list(range(len(work.ids)))[: min(WIDEST, max(self.concurrency))]
            with Bar(len(work.ids), 0) as bar:
                measured, times = profile(arms, work, together if max(self.concurrency) > 1 else (), bar)
        traces = measured[None].runs[0]
        mean = [len(ids) + trace.tokens / 2 for ids, trace in zip(work.ids, traces, strict=True)]
        rows = 1 + max(each.limits[-1] for each in candidates)
        forward = measure_forwards(plain, self.concurrency, rows, int(sum(mean) / len(mean)))
        alone = [time for time in times if time.requests == 1]
        return Profile(measured, forward.calibrated(alone))

    def options(self, candidates: Sequence[Candidate], profiled: Profile) -> list[Option]:
        """Return every method with every number of drafts at every concurrency, with its predicted speed-up."""
        plain, forward = profiled.measured[None], profiled.forward
        return [
            Option(
                each.label,
                limit,
                size,
                predict(profiled.measured[each.label], limit, plain, self._groups(size), forward),
            )
            for size in self.concurrency
            for each in candidates
            for limit in each.limits
        ]

    def confirmed(
        self, plain: Arm, candidates: Sequence[Candidate], work: Work, options: Sequence[Option]
    ) -> list[Option]:
        """Return the options, the best of each concurrency with what was measured beside plain decoding."""
        by_label = {each.label: each for each in candidates}
        found = {(option.label, option.limit, option.concurrency): option for option in options}
        for size in self.concurrency:
            order = sorted((o for o in options if o.concurrency == size), key=lambda o: -o.predicted.value)
            chosen = [option for option in order[: self.confirm] if option.predicted.value >= LOSES]
            methods = [by_label[option.label].at(option.limit) for option in chosen]
            ratios = self.measure(plain, methods, work, units_of(self.prompts, size))
            for option, ratio in zip(chosen, ratios, strict=True):
                found[option.label, option.limit, size] = replace(option, measured=ratio)
        return list(found.values())

    def measure(self, plain: Arm, methods: Sequence[Method], work: Work, units: Sequence[Unit]) -> list[Ratio]:
        """Return the measured speed-up of methods over plain decoding on units of prompts."""
        if not methods:
            return []
        with self.built(methods, plain) as arms:
            warm_up([plain, *arms], work, units[0].concurrency)
            rows = [row for found in measure([plain, *arms], units, work) for row in found]
        (figures,) = summarise(rows)
        return [Ratio(**arm["speed_up"][ALL]) for arm in figures["arms"][1:]]

    @contextmanager
    def _arms(self, plain: Arm, candidates: Sequence[Candidate]) -> Iterator[list[Profiled]]:
        chosen = [(each, limit) for each in candidates for limit in each.measured]
        with self.built([each.at(limit) for each, limit in chosen], plain) as arms:
            found = (Profiled(arm, each.label, limit) for arm, (each, limit) in zip(arms, chosen, strict=True))
            yield [Profiled(plain, None, 0), *found]

    def _groups(self, size: int) -> list[tuple[int, ...]]:
        return [unit.prompts for unit in units_of(self.prompts, size)]

    def write(
        self, candidates: Sequence[Candidate], options: Sequence[Option], choice: Choice, about: Mapping[str, Any]
    ) -> None:
        """Write the report, and configurations if there is a gain, else take older ones away. Raises RequestError."""
        if self.out is None:
            return
        candidate = next((each for each in candidates if each.label == choice.label), None)
        data = {
            **about,
            "gain": GAIN,
            "options": [asdict(option) for option in options],
            "choice": {"method": choice.label, "num_speculative_tokens": choice.limits},
        }
        files: dict[str, Any] = {REPORT_FILE: data, ENGINE_FILE: None, VLLM_FILE: None}
        if candidate is not None:
            files |= {ENGINE_FILE: engine_config(candidate, choice), VLLM_FILE: vllm_config(candidate, choice)}
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                if content is None:
                    (self.out / name).unlink(missing_ok=True)
                else:
                    (self.out / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            message = f"--out {self.out} cannot be written: {error.strerror or error}"
            raise RequestError(message) from error
