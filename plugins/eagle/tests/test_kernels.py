"""The ops of tree drafting: the definition against numbers worked by hand, Triton against the definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_plugin_eagle.kernels.torch_ref import draft_rows, tree_expand
from specdec_testing.triton_checks import assert_triton_checks_pass


def test_children_come_by_logit_and_scores_add_up() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3], [0.25, 0.25, 0.5]]))
    ids, scores = tree_expand(logits + 3.0, torch.log(torch.tensor([0.6, 0.3])), 2)
    assert ids.tolist() == [[1, 2], [2, 0]]
    torch.testing.assert_close(scores.exp(), torch.tensor([[0.30, 0.18], [0.15, 0.075]]))


def test_rows_take_their_parents_state_and_one_position_a_level() -> None:
    states = torch.arange(12.0).view(2, 3, 2)
    parents, tokens = torch.tensor([[2, 0], [1, 1]]), torch.tensor([[7, 8], [9, 10]])
    features, ids, positions = draft_rows(states, parents, tokens, torch.tensor([4, 20]), 3)
    assert features.tolist() == [[4, 5], [0, 1], [8, 9], [8, 9]]
    assert ids.tolist() == [7, 8, 9, 10]
    assert positions.tolist() == [7, 7, 23, 23]


@pytest.mark.slow
def test_triton_passes_its_checks() -> None:
    assert_triton_checks_pass(Path(__file__).with_name("triton_checks.py"))
