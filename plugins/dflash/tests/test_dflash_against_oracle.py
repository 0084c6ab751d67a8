"""Drafts of every layout are the oracle's, over ragged batches with chunks, rejections, gaps and preemptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from dflash_layouts import EVERY
from dflash_replay import agreement, watched

from specdec_testing.driving import Driver, Script

# One layout in seven for every change, all of them in `make test`.
SOME_OFTEN = [name if i % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(EVERY)]

SCRIPTS = (
    Script("first", tuple(range(3, 24)), seed=1, chunk=8, limits=(4, 4, 0, 3), off=frozenset({2})),
    Script("second", (9, 8, 7), seed=2, join=1, limits=(4, 1, 4), preempt=4, steps=7),
    Script("third", tuple(range(60, 100)), seed=3, join=2, limits=(2, 6), skip=11, chunk=30),
    Script("alone", (40,), seed=4, join=3, limits=(5,), steps=4),
)


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_drafts_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = EVERY[name]
    proposer, resolved, target = layout.build(tmp_path / "head", 6)
    assert resolved.traits.aux_layers == layout.aux
    assert resolved.traits.hidden == (not layout.aux)
    recorder = watched(proposer, resolved.traits)
    driver = Driver(recorder, resolved.traits, target)
    driver.run(SCRIPTS)
    assert driver.problems == []
    found = agreement(recorder, layout.oracle(), 6)
    assert set(found.drafted) == {script.name for script in SCRIPTS}
    assert sum(found.drafted.values()) > 60
    assert found.gaps > 8, "gaps were among them"
    assert found.margin > 2e-5
    assert found.confidence_error < 1e-5
    proposer.close()
