"""Static, dynamic and parallel drafts equal those of the oracle, node by node and parent by parent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import oracle
import pytest
from host import PLANS, Host, Plan, agreement
from layouts import LAYOUTS, PARALLEL, Layout

CLEAR = 1e-3
SHAPES = {
    "two-levels": ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0)),
    "deep-and-wide": ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 0, 0, 0), (0, 1, 1, 0)),
    "beam": ((0,), (1,), (2,), (3,)),
}


def plans(k: int, temperature: float = 0.0) -> list[Plan]:
    """Return the usual requests with limits that cut a tree of k nodes at several places."""
    limits = ((k, k, 0, k - 2), (k, 1, k), (2, k, k - 1))
    return [replace(plan, limits=some, temperature=temperature) for plan, some in zip(PLANS, limits, strict=True)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("eagle", "two-levels"),
        ("eagle-three-layers", "deep-and-wide"),
        ("eagle-llama4-l2-norm", "beam"),
        ("eagle3", "two-levels"),
        ("eagle3-norm-output", "deep-and-wide"),
    ],
)
def test_static_trees_are_the_oracles(name: str, shape: str, tmp_path: Path) -> None:
    layout, paths = LAYOUTS[name], SHAPES[shape]
    head = layout.head()
    proposer, resolved, target = layout.build(tmp_path / "x", len(paths), speculative_token_tree=str(list(paths)))
    host = Host(proposer, resolved.traits, target, plans(len(paths)), seed=layout.seed)
    found = agreement(host, lambda life, limit: oracle.static_tree(head, life.rows, paths[:limit]))
    assert min(found.drafted.values()) > 2 * len(paths)
    assert found.margin > CLEAR


@pytest.mark.parametrize(
    ("name", "top_k", "depth", "k", "seed"),
    [
        ("eagle-own-head-and-embedding", 3, 4, 8, 3),
        ("eagle-minicpm-own-head", 3, 3, 12, 3),
        ("eagle-mistral", 3, 1, 3, 0),
        ("eagle3", 2, 2, 4, 0),
        ("eagle3", 4, 8, 2, 1),
        ("eagle3-qwen3", 3, 4, 8, 3),
        ("eagle3-norm-output", 5, 3, 20, 3),
    ],
)
def test_dynamic_trees_are_the_oracles(name: str, top_k: int, depth: int, k: int, seed: int, tmp_path: Path) -> None:
    """Levels below the k-th hold nothing of the draft: the oracle makes them for nothing, the plugin does not."""
    layout = LAYOUTS[name]
    head, levels = layout.head(), min(depth, k + 1)
    proposer, resolved, target = layout.build(tmp_path / "x", k, tree_top_k=top_k, tree_depth=depth)
    host = Host(proposer, resolved.traits, target, plans(k), seed=seed)
    found = agreement(host, lambda life, limit: oracle.dynamic_tree(head, life.rows, top_k, levels, limit), rounds=8)
    assert min(found.drafted.values()) > 2 * k
    assert found.margin > CLEAR


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_drafts_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = PARALLEL[name]
    head = layout.head()
    proposer, resolved, target = layout.build(tmp_path / "x", 5)
    host = Host(proposer, resolved.traits, target, plans(5), seed=layout.seed)
    mask = mask_of(layout)
    found = agreement(host, lambda life, limit: oracle.parallel(head, life.rows, limit, mask))
    assert min(found.drafted.values()) > 10
    assert found.margin > CLEAR


def mask_of(layout: Layout) -> int:
    """Return the mask id by the order in which keys are looked up."""
    settings = layout.settings
    places = [settings.get("dflash_config") or {}, settings]
    keys = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
    return next(place[key] for place in places for key in keys if key in place)


def test_a_round_of_more_rows_than_a_word_has_bits_is_the_oracles(tmp_path: Path) -> None:
    layout = LAYOUTS["eagle3"]
    head = layout.head()
    proposer, resolved, target = layout.build(tmp_path / "x", 40, tree_top_k=2, tree_depth=36)
    host = Host(proposer, resolved.traits, target, [Plan("deep", prompt=5, limits=(40,))], seed=0)
    found = agreement(host, lambda life, limit: oracle.dynamic_tree(head, life.rows, 2, 36, limit), rounds=2)
    assert found.drafted == {"deep": 80}
    assert found.margin > CLEAR / 5
