"""A host refuses drafts whose q, siblings or confidence could not be verified without a bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_core.errors import ContractError
from specdec_core.traits import MethodTraits

SOFT, SOFT_TREE = MethodTraits(draft_distribution="soft"), MethodTraits(draft_distribution="soft", shape="tree")
TREE = MethodTraits(shape="tree")


def drawn(tokens, q, q_row, parents=None, d2t=None):
    draft = Draft.of([tokens])
    draft.q, draft.q_row = torch.tensor(q), np.int32(q_row)
    draft.parents = None if parents is None else np.int32(parents)
    draft.d2t = None if d2t is None else torch.tensor(d2t)
    return draft


def test_a_drafted_id_has_a_positive_probability_in_the_q_it_names():
    drawn([0, 1], [[0.5, 0.5, 0.0]], [0, 0]).check([2], 3, SOFT)
    drawn([2], [[0.5, 0.5, 0.0]], [-1]).check([1], 3, SOFT)
    with pytest.raises(ContractError, match="draft 2 has probability 0 in row 0 of q"):
        drawn([0, 2], [[0.5, 0.5, 0.0]], [0, 0]).check([2], 3, SOFT)


def test_the_columns_of_a_draft_vocabulary_are_read_by_its_offsets():
    drawn([2], [[0.0, 1.0]], [0], d2t=[0, 1]).check([1], 3, SOFT)
    for token in (0, 1):  # of probability 0, and not in the draft vocabulary
        with pytest.raises(ContractError, match=f"draft {token} has probability 0"):
            drawn([token], [[0.0, 1.0]], [0], d2t=[0, 1]).check([1], 3, SOFT)
    with pytest.raises(ContractError, match="d2t leads to target ids"):
        drawn([2], [[0.0, 1.0]], [0], d2t=[0, 9]).check([1], 3, SOFT)


def test_a_point_mass_differs_from_its_siblings_and_drawn_ones_may_repeat():
    draft = Draft.of([[1, 1]])
    draft.parents = np.int32([-1, -1])
    with pytest.raises(ContractError, match="siblings of a tree have the same id 1"):
        draft.check([2], 3, TREE)
    draft.parents = np.int32([-1, 0])
    draft.check([2], 3, TREE)
    drawn([1, 1], [[0.5, 0.5, 0.0]], [0, 0], [-1, -1]).check([2], 3, SOFT_TREE)
    with pytest.raises(ContractError, match="siblings of a tree have the same id 1"):
        drawn([1, 1], [[0.5, 0.5, 0.0]], [0, -1], [-1, -1]).check([2], 3, SOFT_TREE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1, 1.5])
def test_confidence_is_finite_and_a_probability(value):
    draft = Draft.of([[1, 1]])
    draft.confidence = np.float32([1.0, value])
    with pytest.raises(ContractError, match=r"confidence must be finite and in 0\.\.1"):
        draft.check([2], 3, MethodTraits())


@pytest.mark.parametrize("value", [0.98, 1.02, np.nan])
def test_rows_of_q_add_up_to_one_within_one_tolerance(value):
    with pytest.raises(ContractError, match="no distribution"):
        drawn([1], [[0.0, value, 0.0]], [0]).check([1], 3, SOFT)
    drawn([1], [[0.0, 0.993, 0.0]], [0]).check([1], 3, SOFT)
