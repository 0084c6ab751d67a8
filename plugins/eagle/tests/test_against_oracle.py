"""Drafts of every layout equal those of an independent re-derivation, through rejections, gaps and preemptions."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
from host import Host, Logits, agreement
from layouts import LAYOUTS

CLEAR = 1e-3  # the least gap between the best and the next logit; float32 is off by far less


@pytest.mark.parametrize("name", LAYOUTS)
def test_chains_and_logits_of_every_layout_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    head = layout.head()
    proposer, resolved, target = layout.build(tmp_path / "x")
    host, logits = Host(proposer, resolved.traits, target, seed=layout.seed), Logits(proposer)
    found = agreement(host, lambda life, limit: oracle.chain(head, life.rows, limit), logits=logits)
    assert len(found.drafted) == 3
    assert min(found.drafted.values()) > 10
    assert found.margin > CLEAR
    assert found.error < 5e-5
    proposer.close()
