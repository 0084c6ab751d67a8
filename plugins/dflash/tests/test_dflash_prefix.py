"""Fewer drafts are the first of the whole block's: near limits, and where positions would pass the longest context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from dflash_layouts import EVERY, TARGET
from dflash_replay import Moment, moments, watched

from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeTarget

K = 5
PROMPT = tuple(range(3, 20))


def first_drafts(name: str, folder: Path, limit: int, prompt: Sequence[int] = PROMPT) -> Moment:
    """Return the first drafts behind one prompt."""
    proposer, resolved, target = EVERY[name].build(folder, K)
    recorder = watched(proposer, resolved.traits)
    driver = Driver(recorder, resolved.traits, target)
    driver.run([Script("x", tuple(prompt), limits=(limit,), steps=1)])
    assert driver.problems == []
    return next(moment for moment in moments(recorder) if moment.limit)


@pytest.mark.parametrize("name", ["dflash: standard", "dflash: mixed types", "dspark: from the anchor"])
def test_fewer_drafts_are_the_first_of_the_whole_blocks(name: str, tmp_path: Path) -> None:
    whole = first_drafts(name, tmp_path / "whole", K).tokens
    assert len(whole) == K
    for limit in range(1, K):
        assert first_drafts(name, tmp_path / f"{limit}", limit).tokens == whole[:limit]


@pytest.mark.parametrize("name", ["dflash: standard", "dspark: from the anchor"])
def test_at_the_end_of_the_context_the_whole_block_runs_past_it(name: str, tmp_path: Path) -> None:
    longest = FakeTarget(TARGET).info.max_model_len
    prompt = [3 + i % 100 for i in range(longest - 4)]
    moment = first_drafts(name, tmp_path / "x", K, prompt)
    assert moment.limit < K
    wanted = EVERY[name].oracle().draft(moment.rows, moment.newest, moment.limit, whole=K)
    assert moment.tokens == wanted.tokens
    assert wanted.margin > 1e-4
