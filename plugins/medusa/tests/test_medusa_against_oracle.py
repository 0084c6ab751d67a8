"""Drafts of every layout equal those of an independent derivation: chains, trees and q, over ragged batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import medusa_oracle as oracle
import pytest
import torch
from medusa_checkpoints import VOCAB, built
from medusa_layouts import LAYOUTS, Layout

from specdec_core.token_tree import parse_tree
from specdec_nn.drafters.published_trees import NAMES, named
from specdec_testing.watching import Row, Watch, assert_all_are
from specdec_testing.watching import driven as drive

# One layout in seven for every change, all of them in `make test`.
SOME_OFTEN = [name if i % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]

TREES = {
    "two-levels": "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)]",
    "deep": "[(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (1, 1, 0)]",
    "beam": "[(0,), (1,), (2,), (3,)]",
}


def driven(layout: Layout, folder: Path, **keys: Any) -> Watch:
    """Run the heads through the lives of some requests; chains are accepted in part."""
    return drive(*built(layout.save(folder), **keys))


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_chains_of_every_layout_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    watch = driven(layout, tmp_path / "x")
    assert max(len(row.tokens) for row in watch.rows) == len(layout.parts.heads), "k is the number of heads"
    assert_all_are(watch.rows, lambda row: oracle.chain(layout.parts, row.state, row.limit, VOCAB), clear=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("name", ["old, torch file", "within the target", "new, cut", "new, padded"])
def test_trees_are_the_oracles(name: str, shape: str, tmp_path: Path) -> None:
    layout, paths = LAYOUTS[name], parse_tree(TREES[shape])
    watch = driven(layout, tmp_path / "x", speculative_token_tree=TREES[shape])
    assert {len(row.tokens) for row in watch.rows} >= {1, len(paths)}, "limits cut some trees"
    assert_all_are(watch.rows, lambda row: oracle.tree(layout.parts, row.state, paths, row.limit, VOCAB), clear=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_named_trees_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout, paths = LAYOUTS["new"], named(name)
    assert paths is not None
    watch = driven(layout, tmp_path / "x", speculative_token_tree=name)
    assert max(len(row.tokens) for row in watch.rows) == 63
    assert_all_are(watch.rows, lambda row: oracle.tree(layout.parts, row.state, paths, row.limit, VOCAB), clear=1e-6)


def test_the_fastest_kernels_of_this_machine_draft_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    layout = LAYOUTS["old, two layers"]
    watch = driven(layout, tmp_path / "x")
    assert_all_are(watch.rows, lambda row: oracle.chain(layout.parts, row.state, row.limit, VOCAB), clear=1e-4)


def distribution_of(layout: Layout, row: Row, depth: int) -> torch.Tensor:
    return (oracle.logits(layout.parts, depth, row.state, VOCAB) / row.temperature).softmax(-1)


def in_target_ids(layout: Layout, distribution: torch.Tensor) -> torch.Tensor:
    """Return a reported distribution over the target's ids, by the map of the heads."""
    ids = torch.arange(len(distribution)) if layout.parts.ids is None else layout.parts.ids
    return torch.zeros(VOCAB, dtype=torch.float64).index_add(0, ids, distribution.double())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["old, two layers", "new, scaled", "new, cut", "new, padded", "new, fewer ids"])
@pytest.mark.parametrize("tree", [None, TREES["deep"]])
def test_drawn_drafts_report_the_oracles_distributions(name: str, tree: str | None, tmp_path: Path) -> None:
    """A draft has positive probability, siblings differ and share a row of q, greedy requests have none."""
    layout, compared, strayed = LAYOUTS[name], 0, 0
    keys = {"draft_sample_method": "probabilistic", "speculative_token_tree": tree}
    watch = driven(layout, tmp_path / "x", **{key: value for key, value in keys.items() if value is not None})
    for row in watch.rows:
        if row.temperature == 0:
            assert set(row.distribution_rows) <= {-1}
            continue
        depths: list[int] = []
        for token, parent, distribution_row in zip(row.tokens, row.parents, row.distribution_rows, strict=True):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            assert row.distributions is not None
            distribution = in_target_ids(layout, row.distributions[distribution_row])
            torch.testing.assert_close(distribution, distribution_of(layout, row, depths[-1]), atol=2e-6, rtol=1e-3)
            assert distribution[token] > 0
            strayed += token != int(distribution.argmax())
            compared += 1
        families = list(zip(row.parents, row.tokens, strict=True))
        assert len(set(families)) == len(families)
    assert compared > 100
    assert strayed > 10, "they are draws, and not the likeliest ids"
