"""What the tests of verifiers share: random drafts, the walk spelled out, and a batch drawn through the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from specdec.catalog import Catalog
from specdec.draft import Draft, Verdict
from specdec.kernels import Kernels
from specdec.noise import Noise, Purpose
from specdec_plugin_verifiers.coupled import Coupled


@dataclass
class Case:
    """Rows of drafts and the host's draws: for each row, tokens and parents of its nodes, and a draw a logits row."""

    tokens: list[list[int]]
    parents: list[list[int]]
    draws: list[list[int]]

    def draft(self, *, trees: bool) -> Draft:
        """Return the rows as a draft, with `parents` or as chains."""
        draft = Draft.of(self.tokens)
        if trees:
            draft.parents = np.array([p for row in self.parents for p in row], np.int32)
        return draft

    def target_draws(self) -> torch.Tensor:
        """Return the draws as the host gives them."""
        return torch.tensor([draw for row in self.draws for draw in row], dtype=torch.int64)


def _walk(case: Case) -> list[tuple[list[int], list[int], list[int]]]:
    """Return path, emitted ids and logits rows of each batch row, by looking through all nodes at every step."""
    results = []
    first = 0
    for tokens, parents, draws in zip(case.tokens, case.parents, case.draws, strict=True):
        here, path, emitted, rows = -1, [], [draws[0]], [first]
        while True:
            matching = [i for i in range(len(tokens)) if parents[i] == here and tokens[i] == draws[here + 1]]
            if not matching:
                break
            here = matching[0]
            path.append(here)
            emitted.append(draws[here + 1])
            rows.append(first + here + 1)
        results.append((path, emitted, rows))
        first += len(draws)
    return results


def _unpack(verdict: Verdict) -> list[tuple[list[int], list[int], list[int]]]:
    """Return path, emitted ids and logits rows of each batch row of a verdict."""
    results = []
    path_at = at = 0
    for accepted in verdict.accepted.tolist():
        path = verdict.path[path_at : path_at + accepted].tolist()
        end = at + accepted + 1
        results.append((path, verdict.emitted[at:end].tolist(), verdict.logits_row[at:end].tolist()))
        path_at, at = path_at + accepted, end
    assert (path_at, at) == (len(verdict.path), len(verdict.emitted))
    return results


def _random_case(rng: np.random.Generator, *, chains: bool) -> Case:
    """Return up to 5 rows of up to 9 nodes; draws follow a path of the row half of the time."""
    size = int(rng.integers(2, 12))
    case = Case([], [], [])
    for _ in range(int(rng.integers(0, 6))):
        tokens: list[int] = []
        parents: list[int] = []
        for _ in range(int(rng.integers(0, 10)) * int(rng.random() < 0.85)):
            parent = len(tokens) - 1 if chains else int(rng.integers(-1, len(tokens)))
            free = sorted(set(range(size)) - {t for t, p in zip(tokens, parents, strict=True) if p == parent})
            if free:
                tokens.append(int(rng.choice(free)))
                parents.append(parent)
        draws = rng.integers(0, size, len(tokens) + 1).tolist()
        for node, parent in enumerate(parents):
            if rng.random() < 0.5:
                draws[parent + 1] = tokens[node]
        case.tokens.append(tokens)
        case.parents.append(parents)
        case.draws.append(draws)
    return case


def _emit(table: Any, newest: Any, draft: Draft, *, seed: int = 0, verifier: Any = None) -> Verdict:
    """Verify drafts of a table model: each node's row has the law of its token, drawn with the row's own noise."""
    lengths = np.asarray(draft.lengths)
    first = np.arange(len(lengths)) + np.cumsum(lengths) - lengths
    total = int(lengths.sum()) + len(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    own = np.arange(len(draft.tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    parents = own - 1 if draft.parents is None else draft.parents
    last, depth = np.empty(total, np.int64), np.zeros(total, np.int32)
    last[first] = newest
    last[first[owner] + 1 + own] = draft.tokens
    for i in range(len(draft.tokens)):  # a parent stands before its children
        depth[first[owner[i]] + 1 + own[i]] = depth[first[owner[i]] + 1 + parents[i]] + 1
    rows = np.repeat(np.arange(len(lengths)), lengths + 1)
    keys = np.random.default_rng(seed).integers(0, 2**63, len(lengths)).astype(np.uint64)
    noise = Noise(keys[rows], 40 + depth, np.zeros(total, np.int32))
    probs = torch.from_numpy(np.asarray(table, np.float32))[torch.from_numpy(last)]
    draws = Kernels(Catalog.discover()).get("race")(probs, noise, Purpose.TARGET)
    return (verifier or Coupled()).verify(draft, probs.log(), noise, draws)


def _transitions(verdict: Verdict, newest: Sequence[int], size: int, depths: int) -> list[Any]:
    """Return, for each place of an emitted block, how often each id followed each id before it: [size, size]."""
    counts = [np.zeros((size, size), np.int64) for _ in range(depths)]
    at = 0
    for before, accepted in zip(newest, verdict.accepted.tolist(), strict=True):
        for place, token in enumerate(verdict.emitted[at : at + accepted + 1].tolist()):
            counts[place][before, token] += 1
            before = token
        at += accepted + 1
    return counts


@pytest.fixture
def walk() -> Callable[..., Any]:
    """Return the rule in its plainest form: case -> (path, emitted, logits rows) of each row."""
    return _walk


@pytest.fixture
def unpack() -> Callable[..., Any]:
    """Return a reader of verdicts, in the form of `walk`."""
    return _unpack


@pytest.fixture
def random_case() -> Callable[..., Case]:
    """Return a maker of random cases: (rng, chains=...)."""
    return _random_case


@pytest.fixture
def case_of() -> type[Case]:
    """Return the class of cases."""
    return Case


@pytest.fixture
def emit() -> Callable[..., Verdict]:
    """Return the op and the verifier in one: (table, newest ids, draft) -> verdict."""
    return _emit


@pytest.fixture
def transitions() -> Callable[..., Any]:
    """Return a counter of (id before, id) at each place of emitted blocks."""
    return _transitions
