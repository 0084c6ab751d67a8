"""The compiled backend does as its definition where arrays grow, blocks end and tables fill, and frees it all."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_core.errors import SpecdecError
from specdec_plugin_suffix.forest import Rules
from specdec_plugin_suffix.kernels import layout
from specdec_plugin_suffix.kernels.reference import Forest as Reference

WHOLE = 2**31 - 1


class Pair:
    """The same calls on a compiled forest and on the definition; what they return must be equal."""

    def __init__(self, compiled, depth):
        self.forests = (compiled(depth), Reference(depth))
        self.names = []

    def each(self, call):
        left, right = (call(forest, index) for index, forest in enumerate(self.forests))
        assert left == right
        return left

    def plant(self):
        return [forest.plant() for forest in self.forests]

    def begin(self, root):
        return [forest.begin(root[i]) for i, forest in enumerate(self.forests)]

    def append(self, seq, tokens):
        self.each(lambda forest, i: forest.append(seq[i], np.asarray(tokens, np.int32)))

    def remove(self, seq, count=WHOLE):
        left = self.each(lambda forest, i: forest.remove(seq[i], count))
        if not left:
            self.each(lambda forest, i: forest.end(seq[i]))
        return left

    def check(self, root):
        """Strings, counts and orders of a trie, and the totals, are the same."""
        walks = [
            {string: (count, followers) for string, count, followers in forest.walk(root[i])}
            for i, forest in enumerate(self.forests)
        ]
        assert walks[0] == walks[1]
        self.each(lambda forest, _: forest.tokens)
        assert self.forests[0].nodes <= 2 * self.forests[0].tokens + 3
        return walks[0]


@pytest.mark.parametrize(("depth", "alphabet", "steps"), [(2, 60, 200), (3, 200, 200), (24, 4, 60), (70, 2, 20)])
def test_tries_are_the_same_with_many_siblings_long_texts_and_two_roots(
    depth, alphabet, steps, compiled, text_of, phrases_of
):
    rng = random.Random(depth)
    pair = Pair(compiled, depth)
    roots = [pair.plant(), pair.plant()]
    phrases = phrases_of(rng, alphabet)
    alive, most = [], 0
    for step in range(steps):
        if len(alive) < 4:
            alive.append(pair.begin(roots[step % 2]))
        pair.append(rng.choice(alive), text_of(rng, rng.choice([1, 3, 20, 150]), alphabet, phrases))
        seq = rng.choice(alive)
        if rng.random() < 0.3 and not pair.remove(seq, rng.choice([1, 63, 64, 65, 300, WHOLE])):
            alive.remove(seq)
        most = max(most, pair.forests[0].tokens)
        if step % (steps // 4) == 0:
            texts = [pair.each(lambda forest, i, seq=seq: forest.text(seq[i]).tolist()) for seq in alive]
            assert sum(map(len, texts)) == pair.forests[0].tokens
            for root in roots:
                pair.check(root)
    assert most > 300
    for seq in alive:
        pair.remove(seq)
    for root in roots:
        assert pair.check(root) == {}
        pair.each(lambda forest, i, root=root: forest.fell(root[i]))
    assert pair.forests[0].nodes == 0
    counts = [layout.BLOCK_COUNT, layout.TIE_COUNT, layout.TABLE_COUNT, layout.SEQ_COUNT]
    assert pair.forests[0].head[counts].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("alphabet", [2, 5, 300])
def test_a_trie_from_which_texts_were_removed_is_that_of_the_others(alphabet, compiled, text_of, phrases_of):
    """Node by node: what a removed text had split is one again."""
    rng = random.Random(alphabet)
    phrases = phrases_of(rng, alphabet)
    texts = [text_of(rng, rng.randint(1, 90), alphabet, phrases) for _ in range(40)]
    both, fresh = compiled(12), compiled(12)
    roots = both.plant(), fresh.plant()
    seqs = []
    for text in texts:
        seqs.append(both.begin(roots[0]))
        for start in range(0, len(text), 7):
            both.append(seqs[-1], np.asarray(text[start : start + 7], np.int32))
    for i in rng.sample(range(40), 30):
        both.remove(seqs[i], WHOLE)
        texts[i] = []
    for text in texts:
        fresh.append(fresh.begin(roots[1]), np.asarray(text, np.int32))
    assert both.nodes == fresh.nodes
    walks = [
        {string: count for string, count, _ in each.walk(root)} for each, root in zip((both, fresh), roots, strict=True)
    ]
    assert walks[0] == walks[1]


@pytest.mark.parametrize(("start", "most", "stride"), [(0, 5, 4), (3, 2, 4), (-1, 1, 4), (0, 4, 5)])
def test_an_array_that_is_too_short_for_a_draft_is_refused_and_not_written_past(start, most, stride, forest):
    request = forest(8).request(np.asarray([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5], np.int32), Rules())
    out = np.zeros(12, np.int32)
    for call in (
        lambda: request.draft(most, out, start, stride),
        lambda: request.step(out[:0], 0, 0, most, out, start, stride),
    ):
        with pytest.raises(SpecdecError, match="out"):
            call()
    assert not out.any()


def test_what_was_freed_is_used_again(compiled):
    forest = compiled(8)
    root = forest.plant()
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(30):
        seq = forest.begin(root)
        forest.append(seq, rng.integers(0, 50, 500, np.int32))
        sizes.append(forest.memory_bytes())
        forest.remove(seq, WHOLE)
        forest.end(seq)
    assert sizes[0] == sizes[-1]
    assert forest.tokens == 0


def test_a_request_grows_past_the_room_of_its_own_text_and_of_the_shared_one(compiled):
    forest, plain = compiled(6), Reference(6)
    requests = []
    for each in (forest, plain):
        root = each.plant()
        requests.append(each.request(np.zeros(0, np.int32), Rules()))
        requests[-1].attach(root, each.begin(root))
    small = requests[0].memory_bytes(), forest.memory_bytes()
    rng = random.Random(1)
    for _ in range(150):
        tokens = np.asarray([rng.randrange(12) for _ in range(20)], np.int32)
        drafts = []
        for request in requests:
            out = np.zeros(18, np.int32)
            n = request.step(tokens, 0, 0, 6, out, 0, 6)
            drafts.append((n, out.tolist()))
        assert drafts[0] == drafts[1]
    assert requests[0].memory_bytes() > small[0]
    assert forest.memory_bytes() > small[1]


@pytest.mark.parametrize("ids", [[0, 2**31 - 1, 5, 0, 2**31 - 1], [-1, 7, -5, -1, 7], [-(2**31), 7, -(2**31), 7]])
def test_ids_of_all_sizes_are_matched_and_only_those_of_the_vocabulary_are_drafted(ids, forest):
    rules = Rules(vocabulary=2**31)
    it = forest(8)
    request = it.request(np.asarray(ids, np.int32), rules)
    request.attach(it.plant(), 0)
    out = np.zeros(24, np.int32)
    n = request.step(np.zeros(0, np.int32), 0, 0, 8, out, 0, 8)
    wanted = {0: [5, 0], -1: [], -(2**31): []}[ids[0]]
    assert out[:n].tolist() == wanted
    it.request(np.asarray([ids[0]] * 70, np.int32), rules)  # a leaf that ends where another one goes on


def test_a_tree_draft_of_thousands_of_branches_outgrows_its_heap(compiled):
    drafts = []
    for make in (compiled, Reference):
        it = make(4)
        root = it.plant()
        for token in range(2, 1500):
            it.append(it.begin(root), np.asarray([1, token], np.int32))
        request = it.request(np.asarray([0], np.int32), Rules(max_factor=50.0, min_probability=0.0, tree=True))
        request.attach(root, it.begin(root))
        out = np.zeros(3 * 50, np.int32)
        n = request.step(np.asarray([1], np.int32), 0, 0, 50, out, 0, 50)
        drafts.append((n, out.tolist()))
    assert drafts[0] == drafts[1]
    assert drafts[0][0] == 50


def test_a_forest_that_would_need_more_rows_than_can_be_named_is_refused(compiled):
    forest = compiled(24)
    with pytest.raises(SpecdecError, match=r"max_cached_tokens"):
        forest.make_room(2**30)
    forest.append(forest.begin(forest.plant()), np.asarray([1, 2, 3], np.int32))
    assert forest.tokens == 3
