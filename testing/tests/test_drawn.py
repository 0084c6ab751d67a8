"""The distribution contract passes a drafter that draws from its q, and finds those that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_core.draft import BatchView, Draft
from specdec_testing.drawn import assert_drafts_follow_q
from specdec_testing.fakes import FakeTarget
from specdec_testing.stubs import Soft
from specdec_testing.table import random_table
from specdec_testing.targets import tiny_target

SIZE = 128
TARGET = FakeTarget(tiny_target("llama"))


class OneId(Soft):
    """Always drafts one id, and reports a uniform q."""

    def __init__(self) -> None:
        super().__init__(np.full((SIZE, SIZE), 1 / SIZE))

    def _chains(self, batch: BatchView) -> Any:
        chains = super()._chains(batch)
        chains[:, 1:] = 7
        return chains


class Peeking(Soft):
    """Draws right, and reads what the host keeps for the acceptance."""

    def propose(self, batch: BatchView) -> Draft:
        keys = [getattr(request, "key", None) for request in batch.requests]
        assert len(keys) == len(batch)
        return super().propose(batch)


class Honest(Soft):
    """Reports for each draw a q that has all its mass there."""

    def propose(self, batch: BatchView) -> Draft:
        draft = super().propose(batch)
        if draft.q is not None and len(draft.tokens):
            draft.q = draft.q * 0
            draft.q[np.arange(len(draft.tokens)), draft.tokens] = 1.0
        return draft


def table() -> Any:
    return random_table(SIZE, seed=2, concentration=0.1)


def test_a_drafter_that_draws_from_q_passes() -> None:
    stub = Soft(table())
    assert_drafts_follow_q(stub, stub.traits, TARGET)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (OneId, "do not follow"),
        (lambda: Peeking(table()), "reads `request.key`"),
        (lambda: Honest(table()), "report q that differ"),
    ],
    ids=["one id, uniform q", "reads the key", "q chosen by the draw"],
)
def test_a_drafter_that_does_not_fails(make: Any, match: str) -> None:
    stub = make()
    with pytest.raises(AssertionError, match=match):
        assert_drafts_follow_q(stub, stub.traits, TARGET)
