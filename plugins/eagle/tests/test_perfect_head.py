"""A head that knows the target's table: every draft is accepted, in every shape of draft, greedy and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfect import perfect_head

from specdec_engine import LLM, SamplingParams
from specdec_testing.table import random_table, table_target

VOCAB = 24
TABLE = random_table(VOCAB, seed=5, concentration=0.3)
TARGET = table_target(TABLE, num_layers=4)
PROMPTS = [[3, 4, 5], [7] * 40, [9, 1, 2, 11, 6]]


def generate(folder: Path, max_tokens: int, temperature: float, k: int, **keys: Any) -> tuple[list[Any], Any]:
    config = {"method": "eagle", "model": perfect_head(folder, VOCAB), "num_speculative_tokens": k, **keys}
    sampling = [
        SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=i, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    with LLM(hf_model=TARGET, speculative_config=config, strict=True) as llm:
        results = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling)
        return results, llm.get_metrics()


SHAPES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "chain": (4, 4, {}),
    "chain as a tree": (3, 3, {"speculative_token_tree": "[(0,), (0,0), (0,0,0)]"}),
    "static tree": (5, 3, {"speculative_token_tree": "[(0,), (1,), (0,0), (0,1), (0,0,0)]"}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_draft_on_the_way_is_accepted_and_counted(shape: str, tmp_path: Path) -> None:
    """The first id comes with the prompt; every step after it gives a whole path and one id more."""
    k, depth, keys = SHAPES[shape]
    steps = 6
    results, metrics = generate(tmp_path / "x", 1 + steps * (depth + 1), 0.0, k, **keys)
    for ids, result in zip(PROMPTS, results, strict=True):
        tokens, newest = result.outputs[0].token_ids, ids[-1]
        for token in tokens:
            assert token == int(np.argmax(TABLE[newest]))
            newest = token
        assert (result.metrics.accepted, result.metrics.emitted) == (steps * depth, steps * (depth + 1))
        assert result.metrics.drafted == steps * k
    assert metrics.mean_acceptance_length == depth + 1


def test_a_dynamic_tree_is_accepted_down_to_its_end(tmp_path: Path) -> None:
    """With one child a node a dynamic tree is a chain of the likeliest ids."""
    results, metrics = generate(tmp_path / "x", 1 + 5 * 4, 0.0, 3, tree_top_k=1, tree_depth=3)
    assert metrics.mean_acceptance_length == 4
    assert all(result.metrics.accepted == 15 for result in results)


def test_a_wide_dynamic_tree_holds_the_targets_own_path_as_far_as_it_goes(tmp_path: Path) -> None:
    """The tree holds the likeliest paths, and the walk takes the greedy one as deep as it was drafted."""
    _, metrics = generate(tmp_path / "x", 41, 0.0, 12, tree_top_k=3, tree_depth=4)
    assert metrics.mean_acceptance_length > 3


@pytest.mark.parametrize("verifier", ["standard", "coupled", "block"])
def test_drawn_drafts_of_the_targets_own_distribution_are_accepted(verifier: str, tmp_path: Path) -> None:
    """The drafter's q is the target's p up to rounding; with the target's noise the very draws are the same."""
    keys = {"draft_sample_method": "probabilistic", "rejection_sample_method": verifier}
    results, _ = generate(tmp_path / "x", 41, 1.0, 3, **keys)
    drafted, accepted = (sum(getattr(r.metrics, name) for r in results) for name in ("drafted", "accepted"))
    assert drafted > 80
    assert accepted == drafted


def test_drawn_trees_of_the_targets_own_distribution_are_accepted_at_their_first_child(tmp_path: Path) -> None:
    keys = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
    results, metrics = generate(tmp_path / "x", 1 + 4 * 10, 1.0, 5, **keys, **SHAPES["static tree"][2])
    assert metrics.mean_acceptance_length == 4
    assert all(result.metrics.emitted == 40 for result in results)
