"""A caller's logits processors: their forms, and how they are asked at every row with its own prefix.

A processor is one of these:

- a function `f(output_ids, logits) -> logits` or `f(prompt_ids, output_ids, logits) -> logits`, as in vLLM; the ids
  are tuples, the drafts before the row among the output's;
- an object with `apply(prefix, logits) -> logits`; `prefix` are all ids before the row, read-only int32;
- such an object with a state, which has `fork()`, `accept(token)` and `rollback(count)` as well.

`logits` is the row [V], float32, which may be written to; what is returned counts.

A state is moved by ids that have been emitted. Each sample of each request gets a fork of its own when it is submitted,
and the prompt is not fed to it. For a row behind drafts it is moved on by them and rolled back afterwards. An `accept`
that raises must leave the state as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_core.errors import RequestError
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows

MOVES = ("accept", "rollback", "fork")


class Processor(Protocol):
    """An object that processes logits and remembers nothing."""

    def apply(self, prefix: IntArray, logits: Tensor) -> Tensor:
        """Return the processed logits [V] of the position after `prefix`."""


class StatefulProcessor(Processor, Protocol):
    """An object whose state says what comes next."""

    def fork(self) -> StatefulProcessor:
        """Return a copy that moves by itself."""

    def accept(self, token: int) -> None:
        """Move on by one id."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted ids."""


class Caller:
    """Asks one processor for one sample; this one calls objects with `apply`."""

    def __init__(self, processor: Any) -> None:
        """Take the processor."""
        self.processor = processor
        self.name = name_of(processor)

    def fork(self) -> Caller:
        """Return the caller of one sample."""
        return self

    def commit(self, ids: Sequence[int]) -> None:
        """Move on by emitted ids."""

    def rewind(self) -> None:
        """Go back behind the emitted ids."""

    def __call__(self, request: Request, path: IntArray, logits: Tensor) -> Any:
        """Return what the processor makes of the row behind the drafts `path`."""
        prefix = np.concatenate((request.tokens, path))
        prefix.flags.writeable = False
        return self.processor.apply(prefix, logits)


class FunctionCaller(Caller):
    """Calls a function of the output, or of the prompt and the output."""

    def __init__(self, function: Callable[..., Any], *, with_prompt: bool) -> None:
        """Take the function and its form."""
        super().__init__(function)
        self._with_prompt = with_prompt

    def __call__(self, request: Request, path: IntArray, logits: Tensor) -> Any:
        """Return what the function returns."""
        output = (*request.output_ids, *path.tolist())
        if self._with_prompt:
            return self.processor(tuple(request.tokens[: request.prompt_len].tolist()), output, logits)
        return self.processor(output, logits)


class StateCaller(Caller):
    """Calls an object whose state has to be moved to the row first."""

    def __init__(self, processor: Any) -> None:
        """Begin behind the emitted ids."""
        super().__init__(processor)
        self._at: list[int] = []  # the drafts that the state has accepted

    def fork(self) -> Caller:
        """Return the caller of a copy."""
        try:
            copy = self.processor.fork()
        except Exception as error:
            message = f"logits_processors: fork() of {self.name} raised {type(error).__name__}: {error}"
            raise RequestError(message) from error
        return StateCaller(copy)

    def commit(self, ids: Sequence[int]) -> None:
        """Move on by emitted ids."""
        for token in ids:
            self.processor.accept(token)

    def rewind(self) -> None:
        """Take all drafts back."""
        self._go([])

    def __call__(self, request: Request, path: IntArray, logits: Tensor) -> Any:
        """Move the state behind the drafts `path` and ask it."""
        self._go(path.tolist())
        return super().__call__(request, path, logits)

    def _go(self, path: list[int]) -> None:
        common = next((i for i, (a, b) in enumerate(zip(self._at, path, strict=False)) if a != b), None)
        common = min(len(self._at), len(path)) if common is None else common
        if len(self._at) > common:
            count = len(self._at) - common
            del self._at[common:]
            self.processor.rollback(count)
        for token in path[common:]:
            self.processor.accept(token)
            self._at.append(token)


def callers_of(processors: Sequence[Any]) -> tuple[list[Caller], str | None]:
    """Return the callers of processors, and why drafts cannot be verified with them, None if they can.

    Raises RequestError for what is none of the forms above.
    """
    callers: list[Caller] = []
    reason = None
    for processor in processors:
        if callable(getattr(processor, "apply", None)):
            moves = [move for move in MOVES if callable(getattr(processor, move, None))]
            if moves and not {"accept", "fork"} <= set(moves):
                message = (
                    f"logits_processors: {name_of(processor)} has {', '.join(moves)}; a processor with a state has "
                    "fork(), accept(token) and rollback(count), one without a state has none of them"
                )
                raise RequestError(message)
            if moves and "rollback" not in moves:
                reason = f"the logits processor {name_of(processor)} has a state and no rollback(count)"
            callers.append(StateCaller(processor) if moves else Caller(processor))
        else:
            callers.append(FunctionCaller(processor, with_prompt=_arguments(processor) == 3))
    return callers, reason


def name_of(processor: Any) -> str:
    """Return the name of a function, or of an object's class."""
    return str(getattr(processor, "__qualname__", type(processor).__qualname__))


def _arguments(function: Callable[..., Any]) -> int:
    """Return how many ids and logits a function takes, 2 or 3; raises RequestError for other numbers."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some built-in functions; then the usual form is meant
        return 2
    for count in (2, 3):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count
    message = (
        f"logits_processors: {name_of(function)}{signature} takes neither (output_ids, logits) nor "
        "(prompt_ids, output_ids, logits)"
    )
    raise RequestError(message)


class Processors:
    """The processors of one sample, asked in their order."""

    def __init__(self, callers: Sequence[Caller]) -> None:
        """Take callers of this sample's own."""
        self._callers = callers
        self._broken: str | None = None

    def apply(self, item: ScheduledRows, logits: Tensor) -> dict[int, str]:
        """Write to the wanted rows [item.wants, V] of an item; return, by row, why it has no distribution.

        Rows are visited depth first, so that states have to be moved as little as possible.
        """
        if self._broken is not None:
            return {0: self._broken}
        paths = [item.path(row) for row in range(item.wants)]
        failures: dict[int, str] = {}
        for row in sorted(range(item.wants), key=lambda row: paths[row].tolist()):
            for caller in self._callers:
                try:
                    _write(caller(item.request, paths[row], logits[row]), logits[row])
                except Exception as error:
                    failures[row] = _told(caller, error)
                    break
        for caller in self._callers:
            try:
                caller.rewind()
            except Exception as error:
                failures[0] = _told(caller, error)
        return failures

    def commit(self, ids: Sequence[int]) -> None:
        """Move states on by emitted ids; one that raises ends the request at its next row."""
        for caller in self._callers:
            try:
                caller.commit(ids)
            except Exception as error:
                self._broken = self._broken or _told(caller, error)


def _write(processed: Any, row: Tensor) -> None:
    if not isinstance(processed, Tensor) or processed.shape != row.shape or not torch.is_floating_point(processed):
        shape = tuple(processed.shape) if isinstance(processed, Tensor) else type(processed).__name__
        message = f"it returned {shape} where logits {tuple(row.shape)} were expected"
        raise TypeError(message)
    if processed.data_ptr() != row.data_ptr():
        row.copy_(processed)


def _told(caller: Caller, error: Exception) -> str:
    return f"the logits processor {caller.name} failed: {type(error).__name__}: {error}"
