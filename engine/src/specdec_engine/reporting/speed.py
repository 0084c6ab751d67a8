"""How fast `specdec generate` was, and the ids that it can write down; one run each, so no figure has an interval."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from specdec_engine.outputs import Logprobs, RequestOutput
from specdec_engine.traces import Top, Trace, write_traces

if TYPE_CHECKING:
    from specdec_engine.llm import LLM
    from specdec_engine.sampling_params import SamplingParams


@dataclass
class Speed:
    """Tokens and seconds of one arm, prompt passes included."""

    arm: str
    tokens: int = 0
    seconds: float = 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time spent within."""
        began = perf_counter()
        yield
        self.seconds += perf_counter() - began

    def count(self, outputs: Sequence[RequestOutput]) -> None:
        """Add the tokens of all answers."""
        self.tokens += sum(len(answer.token_ids) for output in outputs for answer in output.outputs)

    @property
    def per_second(self) -> float:
        """Tokens per second; 0 before any time was spent."""
        return self.tokens / self.seconds if self.seconds else 0.0


def write_speeds(speeds: Sequence[Speed]) -> None:
    """Write a line for each arm to standard error, and the ratio of the first to the second."""
    for speed in speeds:
        line = f"[{speed.arm}: {speed.per_second:.1f} tokens/s, {speed.tokens} tokens in {speed.seconds:.2f} s]"
        print(line, file=sys.stderr)
    if len(speeds) == 2 and speeds[1].per_second:
        ratio = speeds[0].per_second / speeds[1].per_second
        print(f"[{ratio:.2f} x plain in one run each; `specdec bench` measures with intervals]", file=sys.stderr)


def record_outputs(
    file: Path, outputs: Sequence[RequestOutput], llm: LLM, params: SamplingParams, model: str, top: int | None = None
) -> None:
    """Write the first answer to each prompt as traces, with the `top` likeliest ids of each place if that is given.

    Raises RequestError.
    """
    traces = (
        Trace(
            prompt_token_ids=tuple(output.prompt_token_ids),
            token_ids=tuple(output.outputs[0].token_ids),
            max_tokens=params.max_tokens,
            vocab_size=llm._engine.target.info.vocab_size,
            model=model,
            top=() if top is None else tuple(_likeliest(place, top) for place in output.outputs[0].logprobs or ()),
        )
        for output in outputs
    )
    write_traces(file, traces)


def _likeliest(place: Logprobs, top: int) -> Top:
    """Return the best ids of one place with their log-probabilities, in no more digits than float32 has."""
    ranked = sorted((each.rank, id_, each.logprob) for id_, each in place.items() if each.rank is not None)
    return tuple(
        (id_, float(str(np.float32(logprob)))) for rank, id_, logprob in ranked if rank <= top and np.isfinite(logprob)
    )
