"""Both backends learn and draft what the rule in plain Python does: trees, chains, worked numbers, repeated ids."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from recycling_oracle import Oracle

from specdec_plugin_token_recycling.kernels.numba import Table as Compiled
from specdec_plugin_token_recycling.kernels.reference import Table as Reference
from specdec_plugin_token_recycling.templates import as_array, useful_paths

BACKENDS = [pytest.param(Compiled, id="numba"), pytest.param(Reference, id="reference")]
backends = pytest.mark.parametrize("backend", BACKENDS)


def drafted(call, most):
    """What a table drafts, as [(id, parent, probability)]; around it, nothing is written."""
    out, confidence = np.full((2, most + 2), -7, np.int32), np.full(most + 2, -7, np.float32)
    count = call(out, confidence, 1)
    assert out[:, 0].tolist() == [-7, -7] and (out[:, 1 + count :] == -7).all() and confidence[0] == -7
    used = slice(1, 1 + count)
    return list(zip(out[0, used].tolist(), out[1, used].tolist(), confidence[used].tolist(), strict=True))


def step(rng, vocabulary, n, size):
    """Rows of one step: some ids twice, some candidates outside the vocabulary or missing."""
    tokens = rng.integers(0, vocabulary + 1, size).astype(np.int32)
    accepted = rng.random(size) < 0.5
    accepted[0] = True
    top = np.stack([rng.permutation(vocabulary + 2)[:n] for _ in range(size)]).astype(np.int32)
    logprobs = np.sort(np.log(rng.dirichlet(np.ones(n + 1), size)[:, :n]), axis=1)[:, ::-1].astype(np.float32)
    top[rng.random((size, n)) < 0.05] = -1
    logprobs[rng.random((size, n)) < 0.02] = -np.inf
    return tokens, accepted, top, np.ascontiguousarray(logprobs)


@backends
@pytest.mark.parametrize(("vocabulary", "n"), [(3, 2), (30, 4), (900, 8)])
def test_trees_are_those_of_the_rule_after_every_step(backend, vocabulary, n):
    rng = np.random.default_rng(vocabulary)
    table, oracle = backend(vocabulary, n), Oracle(vocabulary, n)
    paths = useful_paths(20, n)
    template = as_array(paths)
    for _ in range(60):
        rows = step(rng, vocabulary, n, int(rng.integers(1, 18)))
        table.learn(*rows)
        oracle.learn(*(part.tolist() for part in rows))
        assert len(table) == len(oracle.rows)
        newest, most = int(rng.integers(0, vocabulary)), int(rng.integers(0, 21))
        least = float(rng.choice([0.0, 0.05]))
        for found, wanted in (
            (drafted(partial(table.grow, newest, most, least), most), oracle.dynamic(newest, most, least)),
            (drafted(partial(table.unfold, newest, most, template), most), oracle.static(newest, paths, most)),
        ):
            assert [node[:2] for node in found] == [node[:2] for node in wanted]
            assert [node[2] for node in found] == pytest.approx([node[2] for node in wanted], rel=1e-6)
    ids, top, logprobs = table.contents()
    assert ids.tolist() == sorted(oracle.rows)
    for token, row, scores in zip(ids.tolist(), top.tolist(), logprobs.tolist(), strict=True):
        known = oracle.rows[token]
        assert [(t, s) for t, s in zip(row, scores, strict=True) if t >= 0] == known and row[len(known) :] == [-1] * (
            n - len(known)
        )


@backends
def test_the_worked_example_of_the_paper_is_reproduced(backend):
    """V = 8, k = 2: a tree of six nodes, the ids that greedy verification emits, and the table after it."""
    table = backend(8, 2)
    logs = np.log(np.array([[0.6, 0.3]], np.float32))

    def put(token, row):
        table.learn(np.array([token], np.int32), np.array([True]), np.array([row], np.int32), logs)

    for token, row in ((5, [3, 6]), (3, [1, 4]), (6, [2, 7]), (1, [0, 5])):
        put(token, row)
    template = as_array([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
    tree = drafted(lambda *to: table.unfold(5, 6, template, *to), 6)
    assert [node[:2] for node in tree] == [(3, -1), (6, -1), (1, 0), (4, 0), (2, 1), (0, 2)]
    answers = [[6, 3], [1, 0], [2, 7], [0, 5], [3, 6], [4, 0], [5, 6]]
    tokens, accepted = [5, 3, 6, 1, 4, 2, 0], [True, False, True, False, False, True, False]
    table.learn(np.array(tokens, np.int32), np.array(accepted), np.array(answers, np.int32), np.repeat(logs, 7, axis=0))
    ids, top, _ = table.contents()
    assert dict(zip(ids.tolist(), top.tolist(), strict=True)) == {
        0: [5, 6], 1: [0, 5], 2: [4, 0], 3: [1, 0], 4: [3, 6], 5: [6, 3], 6: [2, 7]
    }  # fmt: skip


@backends
def test_of_rows_with_one_id_the_last_of_the_text_wins(backend):
    table = backend(9, 1)
    logs = np.zeros((4, 1), np.float32)
    tokens, accepted = np.full(4, 5, np.int32), np.array([True, True, False, False])
    table.learn(tokens, accepted, np.array([[1], [2], [3], [4]], np.int32), logs)
    assert table.contents()[1].tolist() == [[2]]


@backends
def test_ids_outside_the_vocabulary_are_neither_learnt_nor_looked_up(backend):
    table = backend(4, 2)
    logs = np.full((2, 2), -1.0, np.float32)
    table.learn(np.array([4, -1], np.int32), np.ones(2, np.bool_), np.array([[0, 1], [0, 1]], np.int32), logs)
    table.learn(np.array([0, 1], np.int32), np.ones(2, np.bool_), np.array([[4, 1], [1, 4]], np.int32), logs)
    assert table.contents()[0].tolist() == [1] and table.contents()[1].tolist() == [[1, -1]]
    assert drafted(lambda *to: table.grow(7, 3, 0.0, *to), 3) == []


@backends
def test_a_table_of_all_ids_has_room_for_them_and_no_more(backend):
    table = backend(1000, 2)
    rng = np.random.default_rng(0)
    before = None
    for _ in range(300):
        tokens = rng.integers(0, 1000, 40).astype(np.int32)
        table.learn(
            tokens,
            np.ones(40, np.bool_),
            np.tile(np.array([[3, 4]], np.int32), (40, 1)),
            np.full((40, 2), -1, np.float32),
        )
        if len(table) == 1000:
            before = before or table.memory_bytes()
    assert len(table) == 1000 and table.memory_bytes() == before
    if backend is Compiled:
        assert before == 4 * 1001 + 1001 * 2 * 8


def test_the_usual_template_has_each_path_behind_its_beginning_and_the_best_ones_first():
    for count, candidates in ((1, 1), (15, 8), (80, 8), (40, 12)):
        paths = useful_paths(count, candidates)
        assert len(set(paths)) == len(paths) == count
        assert all(path[:-1] == () or path[:-1] in paths[:i] for i, path in enumerate(paths))
        assert paths[0] == (0,) and max(max(path) for path in paths) < candidates
    assert useful_paths(15, 8) == useful_paths(80, 8)[:15]
