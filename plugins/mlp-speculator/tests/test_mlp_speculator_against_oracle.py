"""Drafts of every variant equal those of an independent derivation: chains, trees and q, over ragged batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlp_speculator_oracle as oracle
import pytest
import torch
from mlp_speculator_checkpoints import VOCAB, built
from mlp_speculator_layouts import LAYOUTS, Layout

from specdec_plugin_mlp_speculator.layout import embedding_factor, embedding_weight, state_weight
from specdec_testing.watching import Row, Watch, assert_all_are
from specdec_testing.watching import driven as drive

# One layout in seven for every change, all of them in `make test`.
SOME_OFTEN = [name if i % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]


def driven(layout: Layout, folder: Path, **keys: Any) -> Watch:
    """Run the speculator through the lives of some requests; chains are accepted in part."""
    return drive(*built(layout.save(folder), **keys))


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_chains_of_every_variant_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    watch = driven(layout, tmp_path / "x")
    assert max(len(row.tokens) for row in watch.rows) == len(layout.parts.heads), "k is the number of heads"
    assert_all_are(
        watch.rows, lambda row: oracle.chain(layout.parts, row.state, row.text[-1], row.limit, VOCAB), clear=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keys", "widths", "kept"),
    [
        ("plain", {"n_candidates": 4}, (3, 2, 2), 4),
        ("plain", {"top_k_tokens_per_head": [5, 4, 3]}, (5, 4, 3), 4),
        ("plain", {"top_k_tokens_per_head": [5, 4, 3], "n_candidates": 5}, (5, 4, 3), 5),
        ("plain", {"top_k_tokens_per_head": [3, 2], "n_candidates": 6}, (3, 2), 6),
        ("plain", {"top_k_tokens_per_head": [6], "n_candidates": 3}, (6,), 3),
        ("plain", {"n_candidates": 1}, (3, 2, 2), 1),
        ("tied, stored once", {"n_candidates": 5}, (3, 2, 2, 1), 5),
        ("seven heads", {"n_candidates": 3}, (2, 2, 1, 1, 1, 1, 1), 3),
        ("padded", {"n_candidates": 12}, (3, 2, 2), 12),
        ("a trainer's spelling", {"n_candidates": 1}, (1, 1, 1), 1),
    ],
)
def test_trees_are_the_oracles(
    name: str, keys: dict[str, Any], widths: tuple[int, ...], kept: int, tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    watch = driven(layout, tmp_path / "x", **keys)
    assert_all_are(
        watch.rows,
        lambda row: oracle.tree(layout.parts, row.state, row.text[-1], widths, kept, row.limit, VOCAB),
        clear=1e-6,
    )


@pytest.mark.slow
def test_every_limit_of_a_tree_cuts_it_to_its_first_nodes(tmp_path: Path) -> None:
    layout, seen = LAYOUTS["plain"], set()
    for k in range(1, 10):
        watch = driven(layout, tmp_path / "x", n_candidates=4, num_speculative_tokens=k)
        seen |= {(row.limit, len(row.tokens)) for row in watch.rows}
        assert_all_are(
            watch.rows,
            lambda row: oracle.tree(layout.parts, row.state, row.text[-1], (3, 2, 2), 4, row.limit, VOCAB),
            clear=1e-6,
        )
    assert {(limit, limit) for limit in range(1, 7)} <= seen
    assert any(length < limit for limit, length in seen), "sequences that share more have fewer nodes"


def test_the_fastest_kernels_of_this_machine_draft_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    layout = LAYOUTS["tied, stored once"]
    watch = driven(layout, tmp_path / "x")
    assert_all_are(
        watch.rows, lambda row: oracle.chain(layout.parts, row.state, row.text[-1], row.limit, VOCAB), clear=1e-5
    )


def distributions_of(layout: Layout, row: Row) -> list[torch.Tensor]:
    """Return the distribution of each id of a drawn chain, given those before it."""
    s, token, distributions = oracle.begin(layout.parts, row.state), row.text[-1], []
    for i, drafted in enumerate(row.tokens):
        s, logits = oracle.forward(layout.parts, i, s, token, VOCAB)
        distributions.append((logits / row.temperature).softmax(-1))
        token = drafted
    return distributions


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "tied, stored once", "padded", "fewer ids"])
def test_drawn_drafts_report_the_oracles_distributions_each_after_the_ids_that_were_drawn(
    name: str, tmp_path: Path
) -> None:
    layout, compared, strayed = LAYOUTS[name], 0, 0
    watch = driven(layout, tmp_path / "x", draft_sample_method="probabilistic")
    for row in watch.rows:
        if row.temperature == 0:
            assert set(row.distribution_rows) == {-1}
            continue
        assert row.distributions is not None
        for token, distribution_row, distribution in zip(
            row.tokens, row.distribution_rows, distributions_of(layout, row), strict=True
        ):
            torch.testing.assert_close(row.distributions[distribution_row].double(), distribution, atol=2e-6, rtol=1e-3)
            assert distribution[token] > 0
            strayed += token != int(distribution.argmax())
            compared += 1
    assert compared > 60
    assert strayed > 10, "they are draws, and not the likeliest ids"


@pytest.mark.parametrize(
    ("n_predict", "inner", "sw", "ew", "factor"),
    [
        (3, 4096, 0.890898718, 20.554837, 23.0720244),
        (4, 3072, 0.917004043, 15.6327575, 17.0476429),
        (4, 4096, 0.917004043, 18.0511535, 19.6849224),
        (5, 6144, 0.933032992, 19.9416316, 21.3729115),
        (5, 8192, 0.933032992, 23.0266127, 24.6793124),
    ],
)
def test_the_constants_are_the_worked_ones(n_predict: int, inner: int, sw: float, ew: float, factor: float) -> None:
    assert state_weight(n_predict) == pytest.approx(sw, rel=2e-9)
    assert embedding_weight(n_predict, inner) == pytest.approx(ew, rel=1e-8)
    assert embedding_factor(n_predict, inner) == pytest.approx(factor, rel=1e-8)
    assert oracle.constants(n_predict, inner) == pytest.approx((sw, ew), rel=1e-8)
