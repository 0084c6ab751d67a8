"""Drafts of every layout equal those of an independent derivation: chains, trees and q, over ragged batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra_oracle as oracle
import pytest
import torch
from hydra_checkpoints import Head, built
from hydra_layouts import LAYOUTS, Layout

from specdec_core.token_tree import parse_tree
from specdec_nn.drafters.published_trees import named
from specdec_plugin_hydra.heads import HydraHead, HydraNetwork
from specdec_testing.watching import Watch, assert_all_are
from specdec_testing.watching import driven as drive

# Two layouts for every change, all of them in `make test`.
SOME_OFTEN = [name if i < 2 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]
TREES = {
    "deep": "[(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (1, 1, 0)]",
    "beam": "[(0,), (1,), (2,), (3,)]",
}
DRAWN = {"draft_sample_method": "probabilistic"}


def driven(layout: Layout, folder: Path, *, gaps: bool = False, **keys: Any) -> Watch:
    """Run the heads through the lives of some requests; chains are accepted in part."""
    return drive(*built(layout.save(folder), **keys), least=20 if gaps else 50, gaps=gaps)


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_chains_of_every_layout_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    watch = driven(layout, tmp_path / "x")
    assert max(len(row.tokens) for row in watch.rows) == len(layout.parts.heads), "k is the number of heads"
    assert_all_are(watch.rows, lambda row: oracle.chain(layout.parts, row), clear=1e-5)


@pytest.mark.parametrize("name", ["mlp", "prefix-mlp"])
def test_after_gaps_pauses_and_preemption_drafts_are_those_of_the_rows_that_came(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    watch = driven(layout, tmp_path / "x", gaps=True)
    holes = [row for row in watch.rows if row.positions != list(range(row.positions[-1] + 1))]
    assert len(holes) > 10
    assert_all_are(watch.rows, lambda row: oracle.chain(layout.parts, row), clear=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("name", ["mlp", "prefix-mlp", "mlp, not grounded", "mlp, padded", "mlp, fewer ids"])
def test_trees_are_the_oracles(name: str, shape: str, tmp_path: Path) -> None:
    layout, paths = LAYOUTS[name], parse_tree(TREES[shape])
    watch = driven(layout, tmp_path / "x", speculative_token_tree=TREES[shape])
    assert {len(row.tokens) for row in watch.rows} >= {1, len(paths)}, "limits cut some trees"
    assert_all_are(watch.rows, lambda row: oracle.tree(layout.parts, row, paths), clear=1e-6)


def test_the_tree_of_the_method_is_the_oracles(tmp_path: Path) -> None:
    layout, paths = LAYOUTS["mlp"], named("mc_sim_7b_63")
    assert paths is not None
    watch = driven(layout, tmp_path / "x", speculative_token_tree="mc_sim_7b_63")
    assert max(len(row.tokens) for row in watch.rows) == 63
    assert_all_are(watch.rows, lambda row: oracle.tree(layout.parts, row, paths), clear=1e-6)


def test_candidates_of_one_head_differ_from_parent_to_parent(tmp_path: Path) -> None:
    """That is what they have over Medusa's heads."""
    watch = driven(LAYOUTS["mlp"], tmp_path / "x", speculative_token_tree="[(0,), (1,), (0, 0), (1, 0)]")
    whole = [row.tokens for row in watch.rows if len(row.tokens) == 4]
    assert sum(tokens[2] != tokens[3] for tokens in whole) > len(whole) / 2


@pytest.mark.slow
def test_the_fastest_kernels_of_this_machine_draft_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    layout = LAYOUTS["prefix-mlp"]
    watch = driven(layout, tmp_path / "x")
    assert_all_are(watch.rows, lambda row: oracle.chain(layout.parts, row), clear=1e-4)


@pytest.mark.parametrize("tree", [None, TREES["deep"]])
@pytest.mark.parametrize("name", ["mlp", pytest.param("prefix-mlp", marks=pytest.mark.slow)])
def test_drawn_drafts_report_the_oracles_distributions(name: str, tree: str | None, tmp_path: Path) -> None:
    """A draft has positive probability, siblings differ and share a distribution, greedy requests have none."""
    layout, compared, strayed = LAYOUTS[name], 0, 0
    watch = driven(layout, tmp_path / "x", **DRAWN, **({} if tree is None else {"speculative_token_tree": tree}))
    for row in watch.rows:
        if row.temperature == 0:
            assert set(row.distribution_rows) <= {-1}
            continue
        x, paths = oracle.input_state(layout.parts, row), list[list[int]]()
        for token, parent, distribution_row in zip(row.tokens, row.parents, row.distribution_rows, strict=True):
            above = [row.text[-1]] if parent < 0 else paths[parent]
            paths.append([*above, token])
            logits = oracle.head_logits(layout.parts.heads[len(above) - 1], x, above)
            assert row.distributions is not None
            found = row.distributions[distribution_row].double()
            torch.testing.assert_close(found, (logits / row.temperature).softmax(-1), atol=2e-6, rtol=1e-3)
            assert found[token] > 0
            strayed += token != int(found.argmax())
            compared += 1
        families = list(zip(row.parents, row.tokens, strict=True))
        assert len(set(families)) == len(families)
    assert compared > 100
    assert strayed > 10, "they are draws, and not the likeliest ids"


def test_the_worked_numbers() -> None:
    """One head over states of width 1: z = 1.5 + SiLU(1), and the order of ids is 0, 2, 1."""
    one, zero = torch.ones(1), torch.zeros(1)
    table = torch.tensor([[0.0], [1.0], [-1.0]])
    weights = {
        "W": torch.tensor([[1.0, -1.0]]),
        "R": torch.tensor([[0.5, 0.5]]),
        "out": torch.tensor([[1.0], [-1.0], [0.5]]),
    }
    head = HydraHead(lambda c: c @ weights["R"].T, [lambda c: c @ weights["W"].T], lambda z: z @ weights["out"].T)
    network = HydraNetwork([head], table, grounded=True)
    inputs = network.step(0, network.begin(torch.tensor([[2.0]])), torch.tensor([1]))
    assert inputs.tolist() == [[2.0, 1.0]]
    logits = network.logits(0, inputs)[0]
    torch.testing.assert_close(float(logits[0]), 2.2310586, atol=1e-6, rtol=0)
    assert logits.argsort(descending=True).tolist() == [0, 2, 1]
    same = Head(((weights["W"], zero),), (weights["R"], zero), (weights["out"], torch.zeros(3)))
    torch.testing.assert_close(oracle.head_logits(same, 2 * one.double(), [1], table, 3).float(), logits)
