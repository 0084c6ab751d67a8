"""The cache holds committed rows only, those of a fresh prefill, and is given back; blocks leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_layouts import EVERY
from dflash_replay import Moment, moments, watched
from torch import Tensor

from specdec_core.draft import BatchView, Rows
from specdec_core.noise import Noise
from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeRequest

KINDS = ("dflash: standard", "dflash: mixed types", "dspark: filling in", "dspark: from the anchor")
SCRIPTS = (
    Script("a", tuple(range(3, 40)), seed=1, chunk=16, limits=(4, 0, 2)),
    Script("b", (9, 8, 7), seed=2, join=1, limits=(4, 1, 4), preempt=3),
)


def kept(proposer: Any, name: str) -> list[Tensor]:
    """Return keys and values of the committed rows of a request, a layer after the other, [rows, heads, width]."""
    cache = proposer._cache
    entry = cache._rows[name]
    slots = torch.from_numpy(cache.arena.slots(entry.segment, 0, entry.kept).astype(np.int64))
    layers = [pages for pair in cache.arena._layers.values() for pages in pair]
    return [pages.transpose(1, 2).flatten(0, 1)[slots] for pages in layers]


def at_once(proposer: Any, moment: Moment) -> list[int]:
    """Give all rows of a moment to another proposer in one call, and return its drafts."""
    n = moment.rows[-1][0] + 1
    view = FakeRequest("fresh", [3] * n)
    view.extend([moment.newest])
    proposer.start(view)
    states = torch.stack([state for _, state in moment.rows])
    positions = np.array([position for position, _ in moment.rows], np.int32)
    rows = Rows(
        request=np.zeros(len(states), np.int32),
        positions=positions,
        tokens=view.tokens[positions + 1],
        hidden=None,
        aux=states.view(len(states), -1, 32),
        gap=np.zeros(1, np.bool_),
    )
    one = [np.array([value], np.int32) for value in (n, moment.limit)]
    noise = Noise(np.zeros(1, np.uint64), np.zeros(1, np.int32), np.zeros(1, np.int32))
    draft = proposer.propose(BatchView([view], one[0], np.ones(1, np.bool_), one[1], noise, rows))
    return [int(token) for token in draft.tokens]


@pytest.mark.parametrize("name", KINDS)
def test_drafts_and_kept_rows_are_those_of_a_fresh_prefill(name: str, tmp_path: Path) -> None:
    layout = EVERY[name]
    proposer, resolved, target = layout.build(tmp_path / "x")
    fresh, _, _ = layout.build(tmp_path / "y")
    recorder = watched(proposer, resolved.traits)
    compared: list[int] = []

    def hold_against_fresh(batch: BatchView) -> None:
        """Look at the state before each call: that after the one before."""
        last = {moment.name: moment for moment in moments(recorder)}
        for request in batch.requests:
            moment, entry = last.get(request.id), proposer._cache._rows[request.id]  # type: ignore[attr-defined]
            if moment is None or entry.kept != len(moment.rows):
                continue
            assert at_once(fresh, moment) == moment.tokens
            for mine, theirs in zip(kept(proposer, request.id), kept(fresh, "fresh"), strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
            compared.append(len(moment.rows))

    driver = Driver(recorder, resolved.traits, target)
    driver.look = hold_against_fresh
    driver.run(SCRIPTS)
    assert len(compared) > 5


@pytest.mark.parametrize("name", KINDS)
def test_everything_is_given_back_at_the_end_of_requests(name: str, tmp_path: Path) -> None:
    proposer, resolved, target = EVERY[name].build(tmp_path / "x")
    arena = proposer._cache.arena  # type: ignore[attr-defined]
    most = 0

    def look(batch: BatchView) -> None:
        nonlocal most
        most = max(most, arena.pages_in_use)

    driver = Driver(proposer, resolved.traits, target)
    driver.look = look
    for reason in ("done", "aborted", "failed"):
        driver.run([Script(**{**vars(script), "reason": reason}) for script in SCRIPTS])
        arena.check_integrity([])
    assert most > 2
    assert proposer.memory_bytes() > 0
    proposer.close()
    arena.check_integrity([])
