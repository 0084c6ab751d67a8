"""Both backends learn and draft what the rule in plain Python does: trees, chains, worked numbers, repeated ids."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from recycling_oracle import Oracle, step

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


@backends
@pytest.mark.parametrize("pairs", [0, 1, 64, 5000])
@pytest.mark.parametrize(("vocabulary", "n"), [(3, 2), (30, 4), (900, 8)])
def test_trees_are_those_of_the_rule_after_every_step(backend, vocabulary, n, pairs):
    rng = np.random.default_rng(vocabulary)
    table, oracle = backend(vocabulary, n, pairs), Oracle(vocabulary, n, pairs)
    paths = useful_paths(20, n)
    template = as_array(paths)
    for _ in range(60):
        rows = step(rng, vocabulary, n, int(rng.integers(1, 18)))
        before = int(rng.integers(-1, vocabulary))
        newest = int(rng.integers(0, vocabulary))
        table.compare(before, rows, newest)
        oracle.compare(before, *(part.tolist() for part in rows[:3]), newest)
        table.learn(before, rows)
        oracle.learn(before, *(part.tolist() for part in rows))
        assert len(table) == len(oracle.rows)
        last, most = (int(rng.integers(-1, vocabulary)), int(rng.integers(0, vocabulary))), int(rng.integers(0, 21))
        least = float(rng.choice([0.0, 0.05]))
        for found, wanted in (
            (drafted(partial(table.grow, last, most, least), most), oracle.dynamic(last, most, least)),
            (drafted(partial(table.unfold, last, most, template), most), oracle.static(last, paths, most)),
        ):
            assert [node[:2] for node in found] == [node[:2] for node in wanted]
            assert [node[2] for node in found] == pytest.approx([node[2] for node in wanted], rel=1e-6)
    known = {(-1, token): row for token, row in oracle.rows.items()} | dict(oracle.places.values())
    keys, top, logprobs = table.contents()
    assert list(map(tuple, keys.tolist())) == sorted(known)
    for key, row, scores in zip(keys.tolist(), top.tolist(), logprobs.tolist(), strict=True):
        expected = known[tuple(key)]
        assert [(t, s) for t, s in zip(row, scores, strict=True) if t >= 0] == expected
        assert row[len(expected) :] == [-1] * (n - len(expected))
    again = backend(vocabulary, n, pairs)
    again.put((keys, top, logprobs))
    assert all(np.array_equal(a, b) for a, b in zip(again.contents(), table.contents(), strict=True))


def only(tokens, top, logs, accepted=None):
    """Rows of a chain."""
    size = len(tokens)
    accepted = np.ones(size, np.bool_) if accepted is None else np.array(accepted)
    parents = np.arange(-1, size - 1, dtype=np.int32)
    return np.array(tokens, np.int32), parents, accepted, np.array(top, np.int32), np.array(logs, np.float32)


@backends
def test_the_worked_example_of_the_paper_is_reproduced(backend):
    """V = 8, k = 2: a tree of six nodes, the ids that greedy verification emits, and the table after it."""
    table = backend(8, 2, 0)
    logs = np.log([0.6, 0.3])
    for token, row in ((5, [3, 6]), (3, [1, 4]), (6, [2, 7]), (1, [0, 5])):
        table.learn(-1, only([token], [row], [logs]))
    template = as_array([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
    tree = drafted(partial(table.unfold, (-1, 5), 6, template), 6)
    assert [node[:2] for node in tree] == [(3, -1), (6, -1), (1, 0), (4, 0), (2, 1), (0, 2)]
    answers = [[6, 3], [1, 0], [2, 7], [0, 5], [3, 6], [4, 0], [5, 6]]
    accepted = [True, False, True, False, False, True, False]
    table.learn(-1, only([5, 3, 6, 1, 4, 2, 0], answers, [logs] * 7, accepted))
    keys, top, _ = table.contents()
    assert dict(zip(keys[:, 1].tolist(), top.tolist(), strict=True)) == {
        0: [5, 6], 1: [0, 5], 2: [4, 0], 3: [1, 0], 4: [3, 6], 5: [6, 3], 6: [2, 7]
    }  # fmt: skip


@backends
def test_of_rows_with_one_id_the_last_of_the_text_wins(backend):
    table = backend(9, 1, 0)
    table.learn(-1, only([5] * 4, [[1], [2], [3], [4]], [[0.0]] * 4, [True, True, False, False]))
    assert table.contents()[1].tolist() == [[2]]


@backends
def test_what_followed_two_ids_comes_before_what_followed_one(backend):
    table = backend(20, 1, 100)
    table.learn(1, only([5], [[11]], [[-0.1]]))
    table.learn(2, only([5], [[12]], [[-0.2]]))
    first = {last: drafted(partial(table.grow, last, 1, 0.0), 1)[0][0] for last in ((1, 5), (2, 5), (3, 5), (-1, 5))}
    assert first == {(1, 5): 11, (2, 5): 12, (3, 5): 12, (-1, 5): 12}


@backends
def test_ids_outside_the_vocabulary_are_neither_learnt_nor_looked_up(backend):
    table = backend(4, 2, 10)
    table.learn(7, only([4, -1], [[0, 1]] * 2, [[-1, -2]] * 2))
    table.learn(-5, only([0, 1], [[4, 1], [1, 4]], [[-1, -2]] * 2))
    keys, top, _ = table.contents()
    assert keys.tolist() == [[-1, 1], [0, 1]] and top.tolist() == [[1, -1]] * 2
    assert drafted(partial(table.grow, (0, 7), 3, 0.0), 3) == []


@pytest.mark.parametrize("pairs", [0, 64])
def test_a_table_of_all_ids_has_room_for_them_and_no_more(pairs):
    table = Compiled(1000, 2, pairs)
    rng = np.random.default_rng(0)
    for _ in range(300):
        table.learn(3, only(rng.integers(0, 1000, 40), [[3, 4]] * 40, [[-1, -1]] * 40))
    assert len(table) == 1000
    assert table.memory_bytes() == 4 * 1001 + 8 * pairs + (1000 + pairs) * 2 * 8


def test_the_usual_template_has_each_path_behind_its_beginning_and_the_best_ones_first():
    for count, candidates in ((1, 1), (15, 8), (80, 8), (40, 12)):
        paths = useful_paths(count, candidates)
        assert len(set(paths)) == len(paths) == count
        assert all(path[:-1] == () or path[:-1] in paths[:i] for i, path in enumerate(paths))
        assert paths[0] == (0,) and max(max(path) for path in paths) < candidates
    assert useful_paths(15, 8) == useful_paths(80, 8)[:15]


@backends
def test_a_probability_counts_for_what_such_ones_turned_out_to_be(backend):
    table = backend(20, 2, 0)
    row = only([5], [[11, 12]], [np.log([0.62, 0.32])])
    table.learn(-1, row)
    first = drafted(partial(table.grow, (-1, 5), 2, 0.0), 2)
    assert [node[0] for node in first] == [11, 12] and first[0][2] == pytest.approx(0.62)
    for _ in range(200):  # after 5 there always came the less likely one
        table.compare(-1, row, 12)
    found = drafted(partial(table.grow, (-1, 5), 2, 0.0), 2)
    assert {node[0]: node[2] for node in found} == pytest.approx({11: 0.021, 12: 0.955}, abs=0.02)
    assert [node[0] for node in drafted(partial(table.grow, (-1, 5), 2, 0.05), 2)] == [12]
    table.learn(5, only([6], [[13, 14]], [np.log([0.63, 0.33])]))
    other = drafted(partial(table.grow, (5, 6), 2, 0.0), 2)
    assert [node[0] for node in other] == [14, 13], "what is known is known of all ids"


@backends
def test_pairs_and_single_ids_are_judged_apart(backend):
    table = backend(20, 1, 100)
    row = only([5], [[11]], [[np.log(0.52)]])
    table.learn(4, row)
    for _ in range(200):
        table.compare(4, row, 11)  # of the pair
        table.compare(3, row, 9)  # of the id alone
    assert drafted(partial(table.grow, (4, 5), 1, 0.0), 1)[0][2] > 0.9
    assert drafted(partial(table.grow, (3, 5), 1, 0.0), 1)[0][2] < 0.1
