"""What the tests of prompt lookup share: the rule by brute force, requests, batches and a way to read drafts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from specdec_core.draft import BatchView, Draft
from specdec_core.noise import Noise


class Request:
    """A `RequestView` over a list of ids; `tokens` is a read-only view that grows with it."""

    def __init__(self, name: str, ids: Sequence[int], capacity: int = 4096) -> None:
        self.id = name
        self.seq_index = 0
        self.prompt_len = len(ids)
        self.sampling_params = None
        self.extra = None
        self._buffer = np.zeros(capacity, np.int32)
        self._size = 0
        self.extend(ids)

    @property
    def tokens(self) -> np.ndarray:
        view = self._buffer[: self._size]
        view.flags.writeable = False
        return view

    def extend(self, ids: Sequence[int]) -> None:
        self._buffer[self._size : self._size + len(ids)] = ids
        self._size += len(ids)


def _expected(ids: Sequence[int], low: int, high: int, k: int, match: str, vocab_size: int = 2**31 - 1) -> list[int]:
    ids = list(ids)
    n = len(ids)
    for g in range(min(high, n - 1), low - 1, -1):
        starts = [s for s in range(n - g) if ids[s : s + g] == ids[n - g :]]
        if starts:
            s = starts[0] if match == "earliest" else starts[-1]
            draft = ids[s + g : s + g + k]
            bad = next((i for i, token in enumerate(draft) if not 0 <= token < vocab_size), len(draft))
            return draft[:bad]
    return []


def _batch(requests: Sequence[Request], limits: Sequence[int], known: Sequence[bool] | None = None) -> BatchView:
    n = len(requests)
    return BatchView(
        requests=list(requests),
        run_len=np.asarray([len(r.tokens) - 1 for r in requests], np.int32),
        newest_known=np.ones(n, np.bool_) if known is None else np.asarray(known, np.bool_),
        max_draft=np.asarray(limits, np.int32),
        noise=Noise(np.zeros(n, np.uint64), np.zeros(n, np.int32), np.zeros(n, np.int32)),
    )


def _rows(draft: Draft) -> list[list[int]]:
    if draft.lengths is None:
        return [[token for token in row if token != -1] for row in draft.tokens.tolist()]
    ends = np.cumsum([0, *draft.lengths]).tolist()
    assert len(draft.tokens) == ends[-1]
    return [draft.tokens[start:end].tolist() for start, end in itertools.pairwise(ends)]


def _text(rng: random.Random, longest: int = 70) -> list[int]:
    """Return random ids of a small alphabet; three in ten are a repeated phrase."""
    size = rng.choice([1, 2, 3, 5, 20])
    ids = [rng.randrange(size) for _ in range(rng.randint(1, longest))]
    if rng.random() < 0.3:
        ids = (ids[: rng.randint(1, 9)] * longest)[: len(ids)]
    return ids


def _ragged(rng: random.Random, rows: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [rows, longest] with rubbish after each length, and lengths [rows]; some rows are empty."""
    tokens = torch.randint(0, 3, (rows, longest), dtype=torch.int32)
    lengths = torch.zeros(rows, dtype=torch.int64)
    for row in range(rows):
        ids = _text(rng, longest) if rng.random() < 0.9 else []
        tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        lengths[row] = len(ids)
    return tokens, lengths


@pytest.fixture
def expected() -> Callable[..., list[int]]:
    """Return the rule of prompt lookup in its plainest form: (ids, low, high, k, match, vocab_size) -> draft."""
    return _expected


@pytest.fixture
def request_of() -> type[Request]:
    """Return the class of requests."""
    return Request


@pytest.fixture
def batch_of() -> Callable[..., BatchView]:
    """Return a maker of batches: (requests, limits, newest_known)."""
    return _batch


@pytest.fixture
def rows_of() -> Callable[[Draft], list[list[int]]]:
    """Return a reader of drafts."""
    return _rows


@pytest.fixture
def text_of() -> Callable[..., list[int]]:
    """Return a maker of random ids that repeat themselves."""
    return _text


@pytest.fixture
def ragged_of() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return a maker of rows of different lengths: (rng, rows, longest) -> ids, lengths."""
    return _ragged
