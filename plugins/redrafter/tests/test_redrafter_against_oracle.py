"""Drafts of every layout equal those of an independent derivation: chains, beams and q, over ragged batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redrafter_oracle as oracle
import torch
from redrafter_checkpoints import built
from redrafter_layouts import LAYOUTS, Layout

from specdec_testing.watching import Watch, assert_all_are
from specdec_testing.watching import driven as drive

# Two layouts for every change, all of them in `make test`.
SOME_OFTEN = [name if i < 2 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]


def driven(layout: Layout, folder: Path, *, seeds: int = 2, **keys: Any) -> Watch:
    """Run the drafter through the lives of some requests; chains are accepted in part."""
    return drive(*built(layout.save(folder), **keys), seeds=seeds, least=20)


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_chains_of_every_layout_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    watch = driven(layout, tmp_path / "x", num_speculative_tokens=5)
    assert max(len(row.tokens) for row in watch.rows) == 5
    assert_all_are(watch.rows, lambda row: oracle.chain(layout.parts, row.state, row.text[-1], row.limit), clear=1e-5)


@pytest.mark.parametrize(
    ("name", "form", "keys"),
    [
        ("recurrent", (4, 3, 4), {"num_beams": 4, "beam_depth": 3}),
        ("sums", (5, 4, 1), {"num_beams": 5, "verified_beams": 1}),
        pytest.param("projected", (10, 4, 3), {"num_beams": 10, "verified_beams": 3}, marks=pytest.mark.slow),
        pytest.param("tensorrt", (5, 5, 5), {"num_beams": 5, "beam_depth": 5}, marks=pytest.mark.slow),
        pytest.param("padded", (50, 2, 50), {"num_beams": 50, "beam_depth": 2}, marks=pytest.mark.slow),
        pytest.param("fewer ids", (1, 3, 1), {"num_beams": 1, "beam_depth": 3}, marks=pytest.mark.slow),
        pytest.param(
            "recurrent",
            (6, 4, 6),
            {"num_beams": 6, "beam_depth": 4, "num_speculative_tokens": 7},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_beams_are_the_oracles_and_what_they_share_is_drafted_once(
    name: str, form: tuple[int, int, int], keys: dict[str, Any], tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    watch = driven(layout, tmp_path / "x", seeds=1, **keys)
    account = lambda row: oracle.tree(layout.parts, row.state, row.text[-1], form, row.limit)  # noqa: E731
    assert_all_are(watch.rows, account, clear=1e-6)
    most = max(len(row.tokens) for row in watch.rows)
    assert most <= keys.get("num_speculative_tokens", form[1] * form[2])
    if form[2] == 1:
        assert most == form[1]


def test_the_best_beam_is_not_always_the_chain_of_likeliest_ids(tmp_path: Path) -> None:
    layout = LAYOUTS["unsure"]
    watch = driven(layout, tmp_path / "x", seeds=1, num_speculative_tokens=4, num_beams=8, verified_beams=1)
    whole = [row for row in watch.rows if row.limit == 4]
    same = {row.tokens == oracle.chain(layout.parts, row.state, row.text[-1], 4).tokens for row in whole}
    assert same == {True, False}


@pytest.mark.slow
def test_the_fastest_kernels_of_this_machine_draft_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    layout = LAYOUTS["recurrent"]
    watch = driven(layout, tmp_path / "x", num_speculative_tokens=4)
    assert_all_are(watch.rows, lambda row: oracle.chain(layout.parts, row.state, row.text[-1], row.limit), clear=1e-4)


@pytest.mark.parametrize("name", ["unsure", pytest.param("fewer ids", marks=pytest.mark.slow)])
def test_drawn_drafts_report_the_oracles_distributions(name: str, tmp_path: Path) -> None:
    """Draws from the whole softmax, at the request's temperature; greedy requests have no distribution."""
    layout, compared, strayed = LAYOUTS[name], 0, 0
    watch = driven(layout, tmp_path / "x", num_speculative_tokens=4, draft_sample_method="probabilistic")
    for row in watch.rows:
        if row.temperature == 0:
            assert set(row.distribution_rows) <= {-1}
            continue
        for depth, (token, distribution_row) in enumerate(zip(row.tokens, row.distribution_rows, strict=True)):
            logits = oracle.logits(layout.parts, row.state, [row.text[-1], *row.tokens[:depth]])
            assert row.distributions is not None
            found = row.distributions[distribution_row].double()
            wanted = (logits / row.temperature).softmax(-1)[: len(found)]
            torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-3)
            assert found[token] > 0
            strayed += token != int(found.argmax())
            compared += 1
    assert compared > 50
    assert strayed > 10, "they are draws, and not the likeliest ids"


def test_the_worked_packings() -> None:
    """Beams that begin with the newest id 9: 9 1 2 and 9 1 3; 9 1 2 and 9 4 2."""
    assert oracle.packed([[1, 2], [1, 3]], 9) == ([1, 2, 3], [-1, 0, 0])
    assert oracle.packed([[1, 2], [4, 2]], 9) == ([1, 2, 4, 2], [-1, 0, -1, 2])
