"""Window, pool and tree do what the rule in plain Python does, step by step, and reproduce the worked example."""

from __future__ import annotations

import random

import pytest
from lookahead_oracle import Oracle

from specdec_plugin_lookahead.pool import Pool
from specdec_plugin_lookahead.rows import Answers, Tree
from specdec_plugin_lookahead.window import Window


def paths_of(tree):
    """Every path of a tree."""
    paths = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def answers_of(tree, newest, model):
    """What a target answers at the rows of a tree, as a proposer is shown it."""
    paths = [(), *paths_of(tree)]
    parents = [-1, *(parent + 1 for parent in tree.parents)]
    return Answers([newest, *tree.tokens], parents, [model((newest, *path)) for path in paths])


class Ours:
    """Window and pool as the proposer uses them."""

    def __init__(self, w, n, g, trunk):
        self.window, self.pool, self.g = Window(w, n, list(trunk)), Pool(n, g), g

    def tree(self, newest, most=10_000):
        tree = Tree(most)
        tree.add_all((*self.window.columns(), *self.pool.rests(newest)[: self.g]))
        return tree

    def advance(self, newest, answers):
        for first, rest in self.window.advance(newest, answers):
            self.pool.add(first, rest)


@pytest.mark.parametrize(("w", "n", "g"), [(3, 3, 2), (1, 3, 1), (4, 5, 3), (7, 4, 7), (2, 8, 0), (5, 3, 4)])
@pytest.mark.parametrize("size", [5, 40])
def test_every_step_is_that_of_the_rule(w, n, g, size):
    rng = random.Random(w * 100 + n * 10 + g)
    table = {}

    def model(path):  # what comes next depends on the last two ids
        return table.setdefault(path[-2:], rng.randrange(size))

    trunk = [rng.randrange(size) for _ in range(w + n - 3)]
    ours, oracle = Ours(w, n, g, trunk), Oracle(w, n, g, trunk)
    newest = 0
    for _ in range(40):
        tree = ours.tree(newest)
        paths = paths_of(tree)
        assert len(set(paths)) == len(paths)
        assert set(paths) == oracle.tree(newest)
        if ours.window.is_filled:  # while levels are filled there are columns besides
            assert len(paths) <= (w - 1) + (n - 2) * w + g * (n - 1)
        answers = answers_of(tree, newest, model)
        ours.advance(newest, answers)
        oracle.advance(newest, lambda path, newest=newest: model((newest, *path)))
        assert ours.window.levels == oracle.levels
        newest = model((newest,))
        kept = [oracle.pool.get(first, []) for first in range(size)]
        assert [list(reversed(ours.pool.rests(first))) for first in range(size)] == kept
    if g:
        assert any(kept)


def test_the_worked_example_is_reproduced():
    """The target: 3 x + 1 modulo 7 of the last id. W 3, N 3, G 2; after the prompt the levels are 4 4 / 0 6 6."""
    ours = Ours(3, 3, 2, [])
    ours.window.levels = [[4, 4], [0, 6, 6]]
    newest, text, levels = 0, [0], []
    guesses = []
    for _ in range(5):
        tree = ours.tree(newest)
        guesses.append(ours.pool.rests(newest))
        answers = answers_of(tree, newest, lambda path: (3 * path[-1] + 1) % 7)
        emitted, path = [answers(())], (answers(()),)
        right = [rest for rest in guesses[-1] if rest[0] == emitted[0]]
        while right and any(rest[: len(path)] == path for rest in right) and len(path) <= 2:
            emitted.append(answers(path))
            path = tuple(emitted)
        ours.advance(newest, answers)
        text += emitted
        newest = text[-1]
        levels.append(ours.window.levels)
    assert text == [0, 1, 4, 6, 5, 2, 0, 1]
    assert guesses == [[], [], [(6, 5)], [], [(0, 1)]]
    assert levels == [
        [[6, 6], [1, 5, 5]],
        [[5, 5], [4, 2, 2]],
        [[2, 2], [6, 0, 0]],
        [[0, 0], [5, 1, 1]],
        [[1, 1], [2, 4, 4]],
    ]
    pool = {first: list(reversed(ours.pool.rests(first))) for first in range(7) if ours.pool.rests(first)}
    assert pool == {
        0: [(5, 2), (1, 4)], 1: [(1, 4)], 2: [(6, 5), (0, 1)], 4: [(6, 5), (4, 6)], 5: [(2, 0)], 6: [(5, 2)]
    }  # fmt: skip


def test_rows_that_were_not_run_leave_their_guess_and_give_no_n_gram():
    window = Window(3, 3, [])
    window.levels = [[4, 5], [6, 7, 8]]
    answers = Answers([1, 6], [-1, 0], [9, 2])  # only column 0 ran
    assert window.advance(1, answers) == [(1, (6, 2))]
    assert window.levels == [[7, 8], [2, 7, 8]]


def test_a_tree_that_is_full_keeps_whole_beginnings_of_paths():
    tree = Tree(3)
    tree.add_all([(1, 2), (1, 3, 4), (5,)])
    assert paths_of(tree) == [(1,), (1, 2), (1, 3)]


def test_the_pool_reads_a_text_in_whatever_pieces_it_comes():
    rng = random.Random(3)
    text = [rng.randrange(6) for _ in range(60)]
    whole, pieces, at = Pool(4, 3), Pool(4, 3), 0
    whole.read(text)
    while at < len(text):
        step = rng.randrange(5)
        pieces.read(text[at : at + step])
        at += step
    assert [whole.rests(first) for first in range(6)] == [pieces.rests(first) for first in range(6)]
    for first in range(6):
        seen = [tuple(text[i + 1 : i + 4]) for i in range(57) if text[i] == first]
        latest = list(dict.fromkeys(reversed(seen)))[:3]
        assert whole.rests(first) == latest
    assert len(whole) == sum(len(whole.rests(first)) for first in range(6))
