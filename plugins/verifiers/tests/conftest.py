"""What the tests of verifiers share: random drafts, the walk spelled out, and a batch drawn through the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft, Verdict
from specdec_core.noise import Noise, Purpose
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels
from specdec_nn.ops.race.reference import race_reference
from specdec_plugin_verifiers.coupled import Coupled
from specdec_plugin_verifiers.distributions import Distributions, Remainder
from specdec_plugin_verifiers.trial import Judge, Trial


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


def _emit(
    table: Any, newest: Any, draft: Draft, *, seed: int = 0, verifier: Any = None, host_draws: bool = True
) -> Verdict:
    """Verify drafts of a table model: each node's row is that of its token, drawn with the row's own noise."""
    lengths = np.asarray(draft.lengths)
    first = np.arange(len(lengths)) + np.cumsum(lengths) - lengths
    total = int(lengths.sum()) + len(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    own = np.arange(len(draft.tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    parents = own - 1 if draft.parents is None else draft.parents
    last, depth = np.empty(total, np.int64), np.zeros(total, np.int32)
    last[first] = newest
    node, parent = first[owner] + 1 + own, first[owner] + 1 + parents
    last[node] = draft.tokens
    for _ in range(lengths.max(initial=0)):
        depth[node] = depth[parent] + 1
    rows = np.repeat(np.arange(len(lengths)), lengths + 1)
    keys = np.random.default_rng(seed).integers(0, 2**63, len(lengths)).astype(np.uint64)
    noise = Noise(keys[rows], 40 + depth, np.zeros(total, np.int32))
    probs = torch.from_numpy(np.asarray(table, np.float32))[torch.from_numpy(last)]
    draws = Kernels(Catalog.discover()).get("race")(probs, noise, Purpose.TARGET) if host_draws else None
    sampled = np.zeros(len(lengths), np.bool_)
    return (verifier or Coupled()).verify(draft, probs.log(), noise, draws, sampled)


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


def _call(rng: np.random.Generator, *, trees: bool, size: int = 8) -> dict[str, Any]:
    """Return random arguments of `Verifier.verify`: up to 6 rows, q of some drafts, greedy and truncated rows."""
    case = _random_case(rng, chains=not trees)
    draft = case.draft(trees=trees)
    draft.tokens = draft.tokens % size
    lengths = np.asarray(draft.lengths, np.int64)
    rows, count = int(lengths.sum()) + len(lengths), len(draft.tokens)
    logits = rng.normal(0, 2, (rows, size))
    logits[rng.random(logits.shape) < rng.choice([0.0, 0.6])] = -np.inf
    logits[np.arange(rows), rng.integers(0, size, rows)] = 0.0
    if count and rng.random() < 0.8:
        width = size if rng.random() < 0.5 else size - 2
        draft.q = torch.from_numpy(rng.dirichlet(np.ones(width), count + 1).astype(np.float32))
        ids = np.sort(rng.permutation(size)[:width])
        draft.d2t = torch.from_numpy(ids - np.arange(width)) if width < size else None
        family = np.arange(count) if draft.parents is None else np.repeat(lengths.cumsum(), lengths) + draft.parents
        _, family = np.unique(family, return_inverse=True)
        soft = (rng.random(count) < 0.7) & ((draft.d2t is None) | np.isin(draft.tokens, ids))
        draft.q_row = np.where(soft, rng.permutation(count + 1)[family], -1).astype(np.int32)
    greedy = rng.random(len(lengths)) < rng.choice([0.0, 0.4, 1.0])
    logits = torch.from_numpy(logits.astype(np.float32))
    noise = _noise(rng, rows)
    draws = race_reference(torch.softmax(logits, -1), noise, Purpose.TARGET)
    best = torch.from_numpy(np.repeat(greedy, lengths + 1))
    draws = torch.where(best, torch.from_numpy(logits.numpy().argmax(-1)), draws)
    return {"draft": draft, "logits": logits, "noise": noise, "target_draws": draws, "greedy": greedy}


def _families(rng: np.random.Generator, *, size: int | None = None) -> dict[str, Any]:
    """Return random arguments of the op `accept`: up to 6 nodes with up to 5 children, over up to 2,000 ids."""
    size = size or int(rng.choice([2, 3, 9, 64, 65, 200, 1024, 1025, 2000]))
    nodes, most, count = (int(n) for n in rng.integers((1, 1, 1), (7, 6, 4)))
    width = int(rng.integers(1, size + 1)) if rng.random() < 0.5 else size
    p, q = (
        rng.dirichlet(np.full(n, rng.choice([0.05, 1.0])), m).astype(np.float32)
        for n, m in ((size, nodes), (width, count))
    )
    p[rng.random(p.shape) < rng.choice([0.0, 0.5])] = 0.0
    column = ids = None
    if width < size or rng.random() < 0.3:
        ids = torch.from_numpy(rng.permutation(size)[:width].copy())
        column = torch.full((size,), -1, dtype=torch.int64)
        column[ids] = torch.arange(width)
    tokens = rng.integers(0, size, (nodes, most))  # with repetitions
    tokens[np.arange(most) >= rng.integers(0, most + 1, nodes)[:, None]] = -1
    distribution = torch.from_numpy(q)
    q_row = rng.integers(-1, count, nodes)
    soft = (rng.random((nodes, most)) < rng.choice([0.0, 0.5, 1.0])) & (q_row >= 0)[:, None] & (tokens >= 0)
    return {
        "p": torch.from_numpy(p),
        "tokens": torch.from_numpy(tokens),
        "soft": torch.from_numpy(soft),
        "q_row": torch.from_numpy(q_row),
        "distributions": Distributions(distribution, distribution.double().sum(1), ids, column),
    }


def _sure_families(rng: np.random.Generator) -> dict[str, Any]:
    """Return arguments of the op `accept` whose q leave next to nothing to all ids but one, as cold drafters do.

    Of each node the first child is q's likeliest id, and the others are drawn after it, as long as q has more.
    """
    size, nodes = int(rng.choice([3, 5, 70, 1030])), 5
    gaps = rng.uniform(0, 2) * rng.uniform(0, 100, (nodes, 1)) * rng.random((nodes, size))
    q = torch.softmax(torch.from_numpy(-np.sort(gaps, axis=1)).float(), -1)
    p = torch.softmax(torch.from_numpy(rng.normal(0, 2, (nodes, size))).float(), -1)
    tokens = torch.arange(3).repeat(nodes, 1)
    soft = q[:, :3] > 0
    return {
        "p": p,
        "tokens": tokens,
        "soft": soft,
        "q_row": torch.arange(nodes),
        "distributions": Distributions(q, q.double().sum(1)),
    }


def _remainder(rng: np.random.Generator, families: dict[str, Any]) -> Remainder:
    """Return a random remainder of the distributions p of `families`."""
    count = int(rng.integers(1, 9))
    rows = torch.from_numpy(rng.integers(0, len(families["p"]), count))
    q_row = torch.from_numpy(rng.integers(-1, len(families["distributions"].q), count))
    alpha, beta = (torch.from_numpy(rng.exponential(1.0, count)) for _ in range(2))
    return Remainder(rows, alpha, torch.where(q_row >= 0, beta, 0.0), q_row, families["tokens"][rows])


def _noise(rng: np.random.Generator, rows: int) -> Noise:
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    return Noise(keys, *(rng.integers(0, 2**31, rows).astype(np.int32) for _ in range(2)))


@pytest.fixture
def call_of() -> Callable[..., dict[str, Any]]:
    """Return a maker of random arguments of `Verifier.verify`: (rng, trees=...)."""
    return _call


@pytest.fixture
def families_of() -> Callable[..., dict[str, Any]]:
    """Return a maker of random arguments of the op `accept`: (rng, size=...)."""
    return _families


@pytest.fixture
def sure_families_of() -> Callable[..., dict[str, Any]]:
    """Return a maker of random arguments of the op `accept` from drafters that are nearly sure: (rng)."""
    return _sure_families


@pytest.fixture
def remainder_of() -> Callable[..., Remainder]:
    """Return a maker of random remainders: (rng, arguments of `accept`)."""
    return _remainder


@pytest.fixture
def noise_of() -> Callable[..., Noise]:
    """Return a maker of random noise: (rng, rows)."""
    return _noise


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """Return the kernels of the core and of the verifiers."""
    return Kernels(Catalog.discover(), ["specdec-plugin-verifiers"])


@pytest.fixture
def trial(kernels: Kernels) -> Callable[..., Trial]:
    """Return a reader of one call: (draft, probabilities [R, V], greedy=...) -> Trial; noise of no importance."""

    def read(draft: Draft, probs: Any, greedy: Any = None) -> Trial:
        logits = torch.from_numpy(np.asarray(probs, np.float32)).log()
        rows = len(logits)
        noise = Noise(np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
        given = np.zeros(len(draft.lengths), np.bool_) if greedy is None else np.asarray(greedy)
        return Judge(kernels).trial(draft, logits, noise, None, given)

    return read


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
