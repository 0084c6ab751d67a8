"""Stub proposers that break the contract, one way each; a host must go on plainly and count the failure.

Each breaks on every `every`-th call of its kind and otherwise does as `inner`, which drafts nothing unless told to.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_testing.stubs import Null, Stub


class StubFailure(RuntimeError):
    """What `Raises` raises, so that a test can tell it from anything else."""


class Breaker(Stub):
    """Base: asks `inner` for a draft and breaks every n-th one. `broken` counts the breaks."""

    def __init__(self, *, every: int = 1, inner: Stub | None = None) -> None:
        """Keep the period and the proposer that does the rest."""
        super().__init__()
        self.every = every
        self.inner = inner if inner is not None else Null()
        self.traits = self.inner.traits
        self.broken = 0

    def start(self, request: RequestView) -> None:
        """Pass it on."""
        super().start(request)
        self.inner.start(request)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Pass it on."""
        super().finish(request, reason)
        self.inner.finish(request, reason)

    def propose(self, batch: BatchView) -> Draft:
        """Return the inner draft, broken every n-th time."""
        self.calls += 1
        draft = self.inner.propose(batch)
        if self.calls % self.every:
            return draft
        self.broken += 1
        spoilt: Draft = self.spoil(batch, draft)
        return spoilt

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Return something out of contract."""
        raise NotImplementedError


class Raises(Breaker):
    """Raises at start, propose or finish, every n-th call of it."""

    def __init__(
        self, where: Literal["start", "propose", "finish"] = "propose", *, every: int = 1, inner: Stub | None = None
    ) -> None:
        """Keep the place."""
        super().__init__(every=every, inner=inner)
        self.where = where

    def start(self, request: RequestView) -> None:
        """Raise if it is time."""
        super().start(request)
        if self.where == "start" and len(self.started) % self.every == 0:
            self._fail()

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Raise if it is time."""
        super().finish(request, reason)
        if self.where == "finish" and len(self.finished) % self.every == 0:
            self._fail()

    def propose(self, batch: BatchView) -> Draft:
        """Raise if it is time."""
        if self.where == "propose":
            return super().propose(batch)
        self.calls += 1
        return self.inner.propose(batch)

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Raise instead of returning a draft."""
        self.broken -= 1
        self._fail()

    def _fail(self) -> None:
        """Count and raise."""
        self.broken += 1
        message = f"stub proposer fails in {self.where} as it was told to"
        raise StubFailure(message)


class _FullRows(Breaker):
    """Spoils with rows of one id, at full length."""

    token = 0

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Fill every row that may be drafted."""
        return Draft.of([[self.token] * int(m) for m in batch.max_draft])


class OutOfVocabulary(_FullRows):
    """Drafts an id just past the vocabulary."""

    def __init__(self, vocab_size: int, *, every: int = 1, inner: Stub | None = None) -> None:
        """Keep the first id that does not exist."""
        super().__init__(every=every, inner=inner)
        self.token = vocab_size


class NegativeIds(_FullRows):
    """Drafts the id -1, which is padding and not an id when lengths are given."""

    token = -1


class TooLong(Breaker):
    """Drafts one id more than each row may get, also where nothing may be drafted."""

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Exceed `max_draft` in every row."""
        return Draft.of([[3] * (int(m) + 1) for m in batch.max_draft])


class WrongRowCount(Breaker):
    """Returns one row more than the batch has, or with `by=-1` one less."""

    def __init__(self, by: int = 1, *, every: int = 1, inner: Stub | None = None) -> None:
        """Keep the difference."""
        super().__init__(every=every, inner=inner)
        self.by = by

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Return empty rows in the wrong number."""
        return Draft.empty(len(batch) + self.by)


class WrongLengthsSum(Breaker):
    """Says it drafted one id more than it delivers."""

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Leave the last id out."""
        lengths = [int(m) for m in batch.max_draft]
        return Draft(lengths=lengths, tokens=np.full(max(sum(lengths) - 1, 0), 3, np.int32))


class BadParents(Breaker):
    """Makes each node its own parent. Rows with nothing to draft are in contract."""

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Return parents that do not come before their children."""
        spoilt = Draft.of([[3] * int(m) for m in batch.max_draft])
        spoilt.parents = np.concatenate([np.arange(m, dtype=np.int32) for m in [0, *batch.max_draft]])
        return spoilt


class BadDistribution(Breaker):
    """Reports a distribution q with a NaN in it, or with `rows=True` points past its last row."""

    def __init__(self, vocab_size: int, *, rows: bool = False, every: int = 1, inner: Stub | None = None) -> None:
        """Keep the vocabulary size and the kind of fault."""
        super().__init__(every=every, inner=inner)
        self.vocab_size = vocab_size
        self.rows = rows

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Return full rows with a spoilt distribution."""
        spoilt = Draft.of([[3] * int(m) for m in batch.max_draft])
        spoilt.q = torch.full((1, self.vocab_size), 1.0 / self.vocab_size)
        if not self.rows:
            spoilt.q[0, 0] = float("nan")
        spoilt.q_row = np.full(len(spoilt.tokens), int(self.rows), np.int32)
        return spoilt


class WrongType(Breaker):
    """Returns None instead of a draft."""

    def spoil(self, batch: BatchView, draft: Draft) -> Any:
        """Return no draft at all."""
        return None
