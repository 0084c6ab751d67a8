"""What a forward of a loaded target costs by the rows that each request has in it; runs no decoding."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from types import TracebackType

import numpy as np
import torch

from specdec_core.errors import RequestError
from specdec_engine.decoding.threads import torchs_threads
from specdec_engine.llm import LLM
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling_params import SamplingParams


class ForwardTimer:
    """Times decode forwards of an idle engine, as a step runs them; a context, which holds pages of the arena.

    Requests of `context` known ids each are run once; a timed forward then runs further rows behind them, logits on
    all rows, and leaves what it wrote to be overwritten by the next.
    """

    def __init__(self, llm: LLM, batch: int, context: int, most_rows: int) -> None:
        """Take an engine without running requests, and the most requests and rows of each that will be timed."""
        self._engine = llm._engine
        self._engine.check_open()
        target = self._engine.target
        ids = np.arange(1, context + 2, dtype=np.int32) % target.info.vocab_size
        params = SamplingParams(temperature=0.0)
        self._requests = [self._engine.submission.again(number, 0, ids, params) for number in range(batch)]
        self._context, self._most_rows = context, most_rows
        self._rows = np.resize(ids, most_rows).astype(np.int32)

    def __enter__(self) -> ForwardTimer:
        """Run the contexts. Raises RequestError where the arena has no room for them."""
        target = self._engine.target
        with target.lock, torchs_threads(target.device):
            for request in self._requests:
                if not target.arena.reserve(request.segment, self._context + self._most_rows):
                    self._release()
                    message = (
                        f"the KV arena of {target.arena.num_tokens} positions has no room for {len(self._requests)} "
                        f"requests of {self._context + self._most_rows}; raise kv_cache_tokens"
                    )
                    raise RequestError(message)
            for request in self._requests:
                target.forward([ScheduledRows(request, 0, request.tokens[: self._context], True)])
        return self

    def seconds(self, rows: Sequence[int]) -> float:
        """Return the seconds of one forward with so many rows of each request, of the first len(rows) requests."""
        target = self._engine.target
        items = [
            ScheduledRows(request, self._context, self._rows[:count], False, count - 1, count)
            for request, count in zip(self._requests, rows, strict=False)
        ]
        with target.lock, torchs_threads(target.device):
            self._wait()
            began = perf_counter()
            target.forward(items)
            self._wait()
            return perf_counter() - began

    def _wait(self) -> None:
        if self._engine.target.device.type == "cuda":
            torch.cuda.synchronize(self._engine.target.device)

    def _release(self) -> None:
        for request in self._requests:
            self._engine.target.arena.release(request.segment)
            self._engine.sampler.finish(request)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the pages back."""
        self._release()
