"""Decodes many prompts together and returns answers with the states behind them; knows no tasks and no files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from specdec_core.errors import ContractError
from specdec_engine import LLM, SamplingParams
from specdec_engine.requests.request import Request
from specdec_train.collect.repetition import before_loop
from specdec_train.collect.settings import BEYOND
from specdec_train.collect.states import StateKeeper

LOOK: Final = 8  # ids between two looks for a loop


@dataclass(frozen=True)
class Job:
    """One prompt to answer, and how."""

    prompt: Sequence[int]
    temperature: float
    seed: int
    max_tokens: int
    top_p: float = 1.0


@dataclass(frozen=True)
class Answer:
    """What came of a job.

    ids     of the answer, its end-of-turn id included where it has one
    end     "stop", "length", or "loop": cut where it began to repeat itself
    last    [prompt + answer, H] states, None where none were kept
    aux     [prompt + answer, A * H]
    """

    ids: list[int]
    end: str
    last: Tensor | None = None
    aux: Tensor | None = None


class Decoder:
    """An engine with its keeper of states."""

    def __init__(self, llm: LLM, keeper: StateKeeper, on_step: Callable[[int], None]) -> None:
        """`on_step` is told after each step how many ids were emitted since the last one."""
        self._llm, self._keeper, self._on_step = llm, keeper, on_step

    def answer(self, jobs: Sequence[Job], ends: Collection[int], *, states: bool) -> list[Answer]:
        """Answer all jobs; those of `ends` end an answer. The same jobs give the same answers and states."""
        self._keeper.on = states
        params = [
            SamplingParams(
                temperature=job.temperature,
                top_p=job.top_p,
                seed=job.seed,
                max_tokens=job.max_tokens + BEYOND,
                ignore_eos=True,
                detokenize=False,
            )
            for job in jobs
        ]
        done: list[Answer | None] = [None] * len(jobs)
        with self._llm.start([{"prompt_token_ids": list(job.prompt)} for job in jobs], params) as run:
            waiting = [_Watch(group.requests[0], job, ends) for group, job in zip(run.groups, jobs, strict=True)]
            live = list(enumerate(waiting))
            while live:
                self._on_step(len(run.step()))
                still = []
                for index, watch in live:
                    if watch.over() and self._has(watch, states):
                        done[index] = self._take(watch, states)
                        run.abort(index)
                    elif watch.request.finished:
                        message = f"request {watch.request.id} ended before its states had been handed over"
                        raise ContractError(message)
                    else:
                        still.append((index, watch))
                live = still
        return [answer for answer in done if answer is not None]

    def _has(self, watch: _Watch, states: bool) -> bool:
        return not states or self._keeper.count(watch.request.id) >= watch.total

    def _take(self, watch: _Watch, states: bool) -> Answer:
        request = watch.request
        ids = request.tokens[request.prompt_len : watch.total].tolist()
        if not states:
            return Answer(ids, watch.end)
        return Answer(ids, watch.end, *self._keeper.take(request.id, watch.total))


class _Watch:
    """Finds out where the answer of one request is over."""

    def __init__(self, request: Request, job: Job, ends: Collection[int]) -> None:
        self.request, self._job, self._ends = request, job, ends
        self.end, self.total = "", 0
        self._seen = 0

    def over(self) -> bool:
        """Return whether the answer is over: `end` says how, `total` has the ids of prompt and answer."""
        request = self.request
        while not self.end and self._seen < request.output_len:
            self._seen += 1
            at = request.prompt_len + self._seen
            if int(request.tokens[at - 1]) in self._ends:
                self.end, self.total = "stop", at
            elif self._seen >= self._job.max_tokens:
                self.end, self.total = "length", at
            elif self._seen % LOOK == 0:
                keep = before_loop(request.tokens[request.prompt_len : at])
                if keep is not None:
                    self.end, self.total = "loop", request.prompt_len + keep
        return bool(self.end)
