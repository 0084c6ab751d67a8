"""Measuring a head in the engine, beside plain decoding on the same prompts; made of the parts of `specdec bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec_core.errors import RequestError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_engine.bench.arms import (
    ModelOptions,
    arena_tokens,
    build_arm,
    closing,
    describe_target,
    encode,
    load_plain,
)
from specdec_engine.bench.measure import Work, measure, warm_up
from specdec_engine.bench.methods import Method, check_methods
from specdec_engine.bench.progress import Bar
from specdec_engine.bench.prompts import ONE_TASK, BenchPrompt, load_prompts, units_of
from specdec_engine.bench.rows import Row
from specdec_engine.bench.session import machine
from specdec_engine.bench.summary import summarise
from specdec_engine.sampling_params import SamplingParams
from specdec_train.data import Data

HELD_OUT: Final = "held-out"
DRAFT: Final = "draft"  # the label of the arm


@dataclass(frozen=True)
class Prompts:
    """What is answered: texts with their tasks, then held-out prompts as ids, all of one task."""

    texts: Sequence[BenchPrompt]
    held_out: Sequence[Sequence[int]]

    @property
    def places(self) -> list[BenchPrompt]:
        """All of them in order, for their tasks; a held-out prompt has no text."""
        return [*self.texts, *(BenchPrompt(HELD_OUT, "", f"held-out {i}") for i in range(len(self.held_out)))]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A head under test.

    model   the target, and how it is loaded
    config  the speculative configuration that runs the head
    chat    whether texts go through the chat template; held-out prompts are as they were collected
    """

    model: ModelOptions
    config: Mapping[str, Any]
    prompts: Prompts
    params: SamplingParams
    chat: bool

    def run(self) -> dict[str, Any]:
        """Answer every prompt plainly and with the head, arms interleaved; return figures and machine as plain data.

        Raises a SpecdecError for what cannot work, before weights are loaded where their files are enough to know.
        """
        method = Method(DRAFT, self.config)
        target = describe_target(self.model)
        check_methods([method], target, Registry(Catalog.discover().with_local(self.model.plugins)))
        plain = load_plain(self.model, 1)
        with closing([plain]):
            ids = encode(plain.llm, self.prompts.texts, self.chat, self.params)
            work = Work([*ids, *self.prompts.held_out], self.params)
            k, most = int(self.config["num_speculative_tokens"]), self.params.max_tokens or 0
            plain.llm.resume(arena_tokens([len(each) for each in work.ids], most, 1, k, target.max_model_len))
            about = machine(plain.llm)
            arm = build_arm(method, plain.llm, self.model)
            rows: list[Row] = []
            with closing([arm]):
                warm_up([plain, arm], work, 1)
                units = units_of(self.prompts.places, 1)
                with Bar(len(units), 0) as bar:
                    for found in measure([plain, arm], units, work, bar.show):
                        rows += found
                        bar.advance()
        return {"machine": about, "summary": summarise(rows)[0]}


def read_prompts(files: Sequence[Path], limit: int | None, data: Path | None, held_out: int) -> Prompts:
    """Return the prompts of files, `limit` of each, and `held_out` of those that the data hold out.

    Prompts of a file without tasks have its name for a task. Raises RequestError where there is nothing to answer.
    """
    texts: list[BenchPrompt] = []
    for file in files:
        for prompt in load_prompts(file, limit):
            task = file.stem if prompt.task == ONE_TASK else prompt.task
            texts.append(BenchPrompt(task, prompt.text, prompt.where))
    found = [] if data is None or held_out == 0 else _held_out(Data(data), held_out)
    if not texts and not found:
        message = "there is nothing to answer: give --prompts FILE, or --data FOLDER with held-out requests"
        raise RequestError(message)
    return Prompts(texts, found)


def _held_out(data: Data, count: int) -> list[list[int]]:
    """Return the prompts of at most `count` held-out requests, spread over all of them."""
    requests = data.requests(held_out=True)
    count = min(count, len(requests))
    chosen = [requests[i * len(requests) // count] for i in range(count)]
    return [request.ids[: request.prompt].tolist() for request in chosen]


def agreement_in_engine(summary: Mapping[str, Any]) -> list[float]:
    """Return by depth how often a draft was accepted once all before it were; it ends where none were."""
    (arm,) = (each for each in summary["arms"] if each["arm"] == DRAFT)
    rates, found, before = arm["acceptance_per_pos"], [], 1.0
    for rate in rates:
        if rate is None or before == 0:
            break
        found.append(rate / before)
        before = rate
    return found
