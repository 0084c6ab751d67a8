"""One benchmark from its checks to its report: what is loaded when, what is written when, what is shown meanwhile."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers

import specdec_engine
from specdec_core.cli.main import say
from specdec_core.cli.output import emit
from specdec_core.errors import RequestError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine.bench import rows as rows_file
from specdec_engine.bench.arms import Arm, describe_target
from specdec_engine.bench.html.report import page
from specdec_engine.bench.measure import Work, measure, warm_up
from specdec_engine.bench.methods import PLAIN, Method, check_methods
from specdec_engine.bench.progress import Bar
from specdec_engine.bench.prompted import Prompted
from specdec_engine.bench.prompts import Unit, units_of
from specdec_engine.bench.rows import Row, Saver
from specdec_engine.bench.samples import samples_of
from specdec_engine.bench.summary import faults, summarise
from specdec_engine.bench.table import lines
from specdec_engine.llm import LLM
from specdec_engine.traces import Trace, write_traces

GUESS: Final = 64  # drafts of a step for which room is left, where a method's own number is not known


@dataclass(frozen=True)
class Files:
    """Where results go, None for nowhere; with `resume` the rows of the JSON file are kept."""

    json: Path | None
    html: Path | None
    record: Path | None
    resume: bool


@dataclass(frozen=True, kw_only=True)
class Session(Prompted):
    """What is to be measured, and where the results go."""

    methods: Sequence[Method]
    concurrency: Sequence[int]
    files: Files

    def run(self) -> int:
        """Measure what is not measured yet, write and print; return 1 if an output differs that must not, else 0.

        Raises a SpecdecError for what cannot work, before weights are loaded where their files are enough to know.
        KeyboardInterrupt comes through, after what is finished was written and printed.
        """
        settings = self.settings()
        rows = rows_file.read(self.files.json, settings) if self.files.resume and self.files.json else []
        target = describe_target(self.model)
        registry = Registry(Catalog.discover().with_local(self.model.plugins))
        resolved = check_methods(self.methods, target, registry)
        parts = {label: [part.method for part in config.parts] for label, config in resolved.items() if config.parts}
        given = [method.config.get("num_speculative_tokens", GUESS) for method in self.methods]
        with self.opened(target, max(self.concurrency), max(*given, GUESS)) as (plain, work):
            about = machine(plain.llm)
            saver = Saver(self.files.json, settings, machine=about, parts=parts)
            plans = {c: units_of(self.prompts, c) for c in self.concurrency}
            done = finished_units(rows, [PLAIN, *(method.label for method in self.methods)])
            rows = [row for row in rows if (row.concurrency, row.unit) in done]
            try:
                self._measure(plain, plans, done, work, saver, rows)
            except KeyboardInterrupt:
                say("warning", self._interrupted(rows, sum(map(len, plans.values()))))
                raise
            finally:
                figures = self._report(rows, settings, about, parts, plain.llm.tokenizer, saver)
                self._record(rows, work, target)
        return int(faults(figures) > 0)

    def settings(self) -> dict[str, Any]:
        """Return all that the rows depend on, as plain data; a run is resumed with the same only."""
        texts = "\0".join(f"{prompt.task}\0{prompt.text}" for prompt in self.prompts)
        model = {name: value for name, value in asdict(self.model).items() if name != "model"}
        return {
            "model": self.model.model,
            **model,
            "methods": {method.label: dict(method.config) for method in self.methods},
            "prompts": f"{len(self.prompts)}, sha256 {hashlib.sha256(texts.encode()).hexdigest()[:16]}",
            "concurrency": list(self.concurrency),
            "max_tokens": self.params.max_tokens,
            "temperature": self.params.temperature,
            "seed": self.params.seed,
            "chat": self.chat,
        }

    def _measure(
        self,
        plain: Arm,
        plans: Mapping[int, Sequence[Unit]],
        done: set[tuple[int, int]],
        work: Work,
        saver: Saver,
        rows: list[Row],
    ) -> None:
        """Add the rows of the units that are not done."""
        with Bar(sum(map(len, plans.values())), len(done)) as bar:
            for concurrency, units in plans.items():
                missing = [unit for unit in units if (concurrency, unit.number) not in done]
                if missing:
                    self._measure_missing(plain, missing, work, saver, rows, bar)

    def _measure_missing(
        self, plain: Arm, units: Sequence[Unit], work: Work, saver: Saver, rows: list[Row], bar: Bar
    ) -> None:
        """Measure units of one concurrency, with engines of its own: methods that remember answers begin anew."""
        with self.built(self.methods, plain, bar.show) as methods:
            arms = [plain, *methods]
            bar.show("warming up")
            warm_up(arms, work, units[0].concurrency)
            for found in measure(arms, units, work, bar.show):
                rows += found
                saver.save(rows)
                bar.advance()

    def _report(
        self,
        rows: Sequence[Row],
        settings: Mapping[str, Any],
        about: Mapping[str, Any],
        parts: Mapping[str, Sequence[str]],
        tokenizer: Any,
        saver: Saver,
    ) -> list[dict[str, Any]]:
        """Write and print the figures of finished units, and return them."""
        figures = summarise(rows)
        if not rows:  # what an earlier run left in the files is kept
            return figures
        saver.save(rows, now=True, summary=figures)
        if self.files.html is not None:
            text = page(figures, settings, about, parts, samples_of(rows, tokenizer))
            try:
                self.files.html.write_text(text, encoding="utf-8")
            except OSError as error:
                message = f"--html {self.files.html} cannot be written: {error.strerror or error}"
                raise RequestError(message) from error
        for line in lines(figures):
            emit(line)
        return figures

    def _record(self, rows: Sequence[Row], work: Work, target: TargetInfo) -> None:
        """Write what plain decoding answered, each prompt once."""
        if self.files.record is None or not rows:
            return
        answers: dict[int, list[int]] = {}
        for row in rows:
            if row.arm == PLAIN:
                answers = {**dict(zip(row.prompts, row.ids, strict=True)), **answers}
        traces = (
            Trace(
                prompt_token_ids=tuple(work.ids[index]),
                token_ids=tuple(ids),
                task=self.prompts[index].task,
                max_tokens=self.params.max_tokens,
                vocab_size=target.vocab_size,
                model=self.model.model,
            )
            for index, ids in sorted(answers.items())
        )
        write_traces(self.files.record, traces)

    def _interrupted(self, rows: Sequence[Row], total: int) -> str:
        finished = len({(row.concurrency, row.unit) for row in rows})
        how = "; the same command with --resume goes on from there" if self.files.json else "; --json keeps them"
        return f"interrupted: {finished} of {total} units are finished{how}"


def finished_units(rows: Sequence[Row], labels: Sequence[str]) -> set[tuple[int, int]]:
    """Return (concurrency, unit) of the units that every arm has run."""
    found: dict[tuple[int, int], set[str]] = {}
    for row in rows:
        found.setdefault((row.concurrency, row.unit), set()).add(row.arm)
    return {unit for unit, arms in found.items() if arms == set(labels)}


def machine(llm: LLM) -> dict[str, Any]:
    """Return what the times depend on besides the settings."""
    target = llm._engine.target
    cuda = target.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(target.device) if cuda else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "dtype": str(target.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "specdec_engine": specdec_engine.__version__,
    }
