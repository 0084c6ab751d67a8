"""Taking nodes out of a draft: what stays is the same draft, numbered anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_core.errors import ContractError
from specdec_core.traits import MethodTraits


def random_forest(rng: np.random.Generator) -> Draft:
    """Three rows of up to six nodes, each with a random earlier parent; tokens are all different."""
    lengths = [int(n) for n in rng.integers(0, 7, 3)]
    parents = [int(rng.integers(-1, i)) for n in lengths for i in range(n)]
    total = sum(lengths)
    draft = Draft(lengths, rng.permutation(100)[:total].astype(np.int32), np.array(parents, np.int32))
    draft.q, draft.q_row = torch.eye(3), rng.integers(-1, 3, total).astype(np.int32)
    draft.confidence = rng.random(total).astype(np.float32)
    draft.part = rng.integers(0, 3, total).astype(np.int32)
    return draft


def facts(draft: Draft) -> list[dict[tuple[int, ...], tuple[int, float, int]]]:
    """Of each row, the ids from the newest one to each node, with what else the node carries."""
    found = []
    start = 0
    for length in draft.lengths or ():
        paths: list[tuple[int, ...]] = []
        row = {}
        for node in range(start, start + length):
            parent = int(draft.parents[node]) if draft.parents is not None else node - start - 1
            path = (() if parent < 0 else paths[parent]) + (int(draft.tokens[node]),)
            paths.append(path)
            row[path] = (int(draft.q_row[node]), float(draft.confidence[node]), int(draft.part[node]))
        found.append(row)
        start += length
    return found


def closed(draft: Draft, mask: np.ndarray) -> np.ndarray:
    """The mask without the nodes that would lose their parent."""
    mask = mask.copy()
    start = 0
    for length in draft.lengths or ():
        for node in range(length):
            parent = node - 1 if draft.parents is None else int(draft.parents[start + node])
            mask[start + node] &= parent < 0 or mask[start + parent]
        start += length
    return mask


def test_what_stays_keeps_its_path_its_distribution_its_confidence_and_its_part() -> None:
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(300):
        draft = random_forest(rng)
        if rng.random() < 0.3:
            draft.parents = None
        mask = closed(draft, rng.random(len(draft.tokens)) < 0.7)
        kept = draft.keep(mask)
        ids = {int(token) for token in draft.tokens[mask]}
        expected = [{path: fact for path, fact in row.items() if path[-1] in ids} for row in facts(draft)]
        assert facts(kept) == expected
        assert kept.tokens.tolist() == draft.tokens[mask].tolist(), "in the order they had"
        assert kept.q is draft.q
        changed += kept is not draft and draft.parents is not None
    assert changed > 100


def test_a_node_never_stays_without_its_parent() -> None:
    tree = Draft([1, 3], np.array([9, 5, 6, 7], np.int32), np.array([-1, -1, 0, 0], np.int32))
    with pytest.raises(ContractError, match="draft 2 was to stay without its parent"):
        tree.keep(np.array([True, False, True, False]))
    with pytest.raises(ContractError, match="draft 3 was to stay without its parent"):
        Draft.of([[9], [5, 6, 7]]).keep(np.array([True, True, False, True]))
    with pytest.raises(ContractError, match="a mask of 4 drafts"):
        tree.keep(np.array([True]))


def test_keeping_all_or_nothing() -> None:
    draft = Draft.of([[4, 5], [], [6]])
    assert draft.keep(np.array([True, True, True])) is draft
    assert draft.keep(np.zeros(3, np.bool_)).lengths == [0, 0, 0]
    assert Draft.empty(2).keep(np.empty(0, np.bool_)).lengths == [0, 0]


def test_of_trees_on_a_device_sizes_alone_are_looked_at() -> None:
    """A device without values: whoever looks into one fails."""
    tokens, parents = (torch.zeros(5, dtype=torch.int32, device="meta") for _ in range(2))
    draft = Draft([3, 2], tokens, parents, confidence=torch.zeros(5, device="meta"))
    traits = MethodTraits(shape="tree", tree_nodes=5)
    draft.check([3, 2], 10, traits)
    some = draft.select([1])
    assert some.is_grown and some.lengths == [2] and some.parents.shape == some.confidence.shape == (2,)
    with pytest.raises(ContractError, match=r"2 drafts where 0\.\.1"):
        draft.check([3, 1], 10, traits)
    with pytest.raises(ContractError, match="parents must be flat"):
        Draft([3, 2], tokens, parents[1:]).check([3, 2], 10, traits)
    with pytest.raises(ContractError, match="parents are on a device, but tokens are int32"):
        Draft([3, 2], np.zeros(5, np.int32), parents).check([3, 2], 10, traits)
