"""Trees by name: those that were published, and what an option may give."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest

from specdec_core.token_tree import TokenTree, parse_tree
from specdec_nn.drafters.published_trees import NAMES, named, paths_of, read_tree

# Of the published tables, sorted by length and then by ranks, as JSON without spaces: beginnings of SHA-256.
DIGESTS = {
    "mc_sim_7b_63": "7e63acaa76293e94",
    "vicuna_7b_stage1": "ff4bbdd31724dfb3",
    "vicuna_7b_stage1_ablation": "5fdf3d81f5f73037",
    "vicuna_7b_stage2": "0c5a284e812ae126",
    "vicuna_13b_stage1": "460a17cc4908c242",
    "vicuna_13b_stage2": "f8d56c05f6889af0",
    "vicuna_33b_stage1": "c103f91c3f869f85",
    "vicuna_33b_stage2": "0d8977dca014312c",
    "zephyr_stage2": "9bcf79a2d0dc3341",
}
DEEPEST = {name: 3 if name == "vicuna_33b_stage1" else 4 for name in NAMES}


def digest(paths: object) -> str:
    return hashlib.sha256(json.dumps(paths, separators=(",", ":")).encode()).hexdigest()[:16]


def test_every_named_tree_is_the_published_one() -> None:
    assert {name: digest(named(name)) for name in NAMES} == DIGESTS


@pytest.mark.parametrize("name", NAMES)
def test_every_named_tree_has_63_nodes_breadth_first_and_no_rank_above_9(name: str) -> None:
    paths = named(name)
    assert paths is not None
    assert parse_tree(paths) == paths, "sorted, with every parent and every rank below"
    assert len(paths) == 63
    assert max(rank for path in paths for rank in path) == 9
    assert TokenTree(paths).depth == DEEPEST[name]
    assert read_tree(f" {name} ") == paths


def test_no_two_names_are_the_same_tree() -> None:
    assert all(named(a) != named(b) for a, b in itertools.combinations(NAMES, 2))


def test_numbers_of_children_say_the_tree_zeros_at_the_end_left_out() -> None:
    wanted = ((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0))
    assert paths_of(((3,), (2, 0, 1), (0, 1))) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [("mc_sim_7b_64", "no tree has that name; there are mc_sim_7b_63, "), ("[(1,)]", "skips a rank")],
)
def test_a_tree_that_is_none_is_refused(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tree(given)
