"""Stub proposers of token trees, which any host must survive with plain decoding's output; knows no model.

Trees depend on seed and known text alone, so that two runs draft the same. Nodes come in random order, a parent before
its children, and siblings differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from specdec_core.draft import BatchView, Draft, RequestView
from specdec_core.traits import MethodTraits
from specdec_testing.stubs import Ids, Perfect, Stub, rng_of_text

Tree = tuple[list[int], list[int]]  # ids, and the index of each one's parent, -1 = the newest id
Parent = Callable[[np.random.Generator, int], int]


def anywhere(rng: np.random.Generator, node: int) -> int:
    """Return any earlier node as parent."""
    return int(rng.integers(-1, node))


def deep(rng: np.random.Generator, node: int) -> int:
    """Return the node before as parent, mostly."""
    return node - 1 if rng.random() < 0.8 else anywhere(rng, node)


def wide(rng: np.random.Generator, node: int) -> int:
    """Return the newest id as parent, mostly."""
    return -1 if rng.random() < 0.8 else anywhere(rng, node)


def grow(rng: np.random.Generator, size: int, vocab_size: int, parent: Parent = anywhere, trunk: Ids = ()) -> Tree:
    """Return a tree of `size` nodes: a path with the ids of `trunk`, and nodes with random other ids around it."""
    ids = [int(token) for token in trunk[:size]]
    parents = list(range(-1, len(ids) - 1))
    taken = set(zip(parents, ids, strict=True))
    while len(ids) < size:
        child = (parent(rng, len(ids)), int(rng.integers(0, vocab_size)))
        if child not in taken:
            taken.add(child)
            parents.append(child[0])
            ids.append(child[1])
    return _shuffled(rng, ids, parents)


def _shuffled(rng: np.random.Generator, ids: list[int], parents: list[int]) -> Tree:
    """Return the same tree with its nodes in random order, a parent before its children."""
    place = {-1: -1}
    left = list(range(len(ids)))
    while left:
        free = [node for node in left if parents[node] in place]
        node = free[int(rng.integers(len(free)))]
        place[node] = len(place) - 1
        left.remove(node)
    order = sorted(range(len(ids)), key=place.__getitem__)
    return [ids[node] for node in order], [place[parents[node]] for node in order]


class TreeStub(Stub):
    """Base of the stubs that draft trees: row by row with `tree`."""

    traits: MethodTraits = MethodTraits(shape="tree")

    def propose(self, batch: BatchView) -> Draft:
        """Draft each row by itself; `max_draft` counts nodes."""
        self.calls += 1
        trees = [self.tree(batch, i) for i in range(len(batch))]
        draft = Draft.of([ids for ids, _ in trees])
        draft.parents = np.array([parent for _, parents in trees for parent in parents], np.int32)
        self.drafted += len(draft.tokens)
        return draft

    def tree(self, batch: BatchView, i: int) -> Tree:
        """Return the tree of batch row i, of at most `max_draft[i]` nodes."""
        return [], []


class GarbageTree(TreeStub):
    """Drafts as many nodes as it may, in a tree of random form; now and then one is right by accident."""

    def __init__(self, vocab_size: int, seed: int = 0, parent: Parent = anywhere) -> None:
        """Keep the size of the vocabulary, the seed, and how parents are chosen."""
        super().__init__()
        self.vocab_size = vocab_size
        self.seed = seed
        self.parent = parent

    def tree(self, batch: BatchView, i: int) -> Tree:
        """Return a tree made from a digest of the text."""
        return grow(rng_of_text(batch.request(i), self.seed), int(batch.max_draft[i]), self.vocab_size, self.parent)


class RaggedTree(GarbageTree):
    """Drafts trees of all forms and sizes in one batch: none, chains, bushes, paths with side branches."""

    FORMS: ClassVar[Sequence[Parent]] = (anywhere, deep, wide, lambda rng, node: node - 1)

    def tree(self, batch: BatchView, i: int) -> Tree:
        """Return a tree whose form is drawn as well."""
        rng = rng_of_text(batch.request(i), self.seed)
        size = int(rng.integers(0, int(batch.max_draft[i]) + 1))
        return grow(rng, size, self.vocab_size, self.FORMS[int(rng.integers(len(self.FORMS)))])


class PerfectTree(TreeStub):
    """Hides what the target is going to generate, as recorded from a plain run, in a tree of garbage.

    `outputs` as in `Perfect`. `right` counts the drafted ids that the target must accept: those of the hidden path, the
    last id of an output apart, since a row that accepts all but that one draws it.
    """

    def __init__(
        self,
        outputs: Mapping[tuple[int, ...], Any] | Callable[[RequestView], Ids],
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        """Keep the recorded outputs."""
        super().__init__()
        self.recorded = Perfect(outputs)
        self.vocab_size = vocab_size
        self.seed = seed
        self.right = 0

    @classmethod
    def of_run(cls, prompts: Sequence[Any], results: Sequence[Any], vocab_size: int, seed: int = 0) -> PerfectTree:
        """Return one that repeats a run: prompts as given to `generate`, results as it returned them."""
        return cls(Perfect.of_run(prompts, results).outputs, vocab_size, seed)

    @property
    def strayed(self) -> int:
        """Rows whose text so far was not the recorded one; they got no drafts."""
        return self.recorded.strayed

    def tree(self, batch: BatchView, i: int) -> Tree:
        """Return a tree around a beginning, of random length, of the rest of the recorded output."""
        most = int(batch.max_draft[i])
        rest = list(self.recorded.row(batch, i))
        if not rest:
            return [], []
        rng = rng_of_text(batch.request(i), self.seed)
        trunk = rest[: int(rng.integers(1, most + 1))]
        self.right += min(len(trunk), len(rest) - 1)
        return grow(rng, most, self.vocab_size, trunk=trunk)
