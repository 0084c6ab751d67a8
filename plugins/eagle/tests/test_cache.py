"""The drafter's cache after each commit is that of a fresh prefill, and is given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from host import PLANS, Host, Life
from layouts import LAYOUTS, PARALLEL, Layout
from torch import Tensor

from specdec_core.draft import BatchView, Draft, Rows
from specdec_core.noise import Noise
from specdec_core.protocols import Proposer
from specdec_testing.fakes import FakeRequest

KINDS: dict[str, tuple[Layout, int, dict[str, Any]]] = {
    "chain": (LAYOUTS["eagle3-three-layers"], 4, {}),
    "first generation": (LAYOUTS["eagle-llama4"], 4, {}),
    "static tree": (LAYOUTS["eagle3"], 4, {"speculative_token_tree": "[(0,), (1,), (0,0), (0,1)]"}),
    "dynamic tree": (LAYOUTS["eagle-three-layers"], 4, {"tree_top_k": 3, "tree_depth": 3}),
    "parallel": (PARALLEL["peagle-two-layers"], 4, {}),
}


def kept(proposer: Any, name: str) -> list[Tensor]:
    """Return keys and values of the committed rows of a request, a layer after the other, [rows, heads, width]."""
    cache = proposer._cache
    entry = cache._rows[name]
    slots = torch.from_numpy(cache.arena.slots(entry.segment, 0, entry.kept).astype(np.int64))
    layers = [pages for pair in cache.arena._layers.values() for pages in pair]
    return [pages.transpose(1, 2).flatten(0, 1)[slots] for pages in layers]


def at_once(proposer: Proposer, life: Life) -> Draft:
    """Give the committed rows of a request to another proposer in one call."""
    view = FakeRequest(life.view.id, life.view.tokens[: life.view.prompt_len])
    view.extend(life.view.tokens[life.view.prompt_len :])
    proposer.start(view)
    states = [row.state for row in life.rows]
    stacked = torch.stack(states)
    aux = stacked.view(len(states), -1, life.hidden.shape[1]) if life.aux.shape[1] else None
    rows = Rows(
        request=np.zeros(len(states), np.int32),
        positions=np.array([row.position for row in life.rows], np.int32),
        tokens=np.array([row.token for row in life.rows], np.int32),
        hidden=stacked if aux is None else None,
        aux=aux,
        gap=np.zeros(1, np.bool_),
    )
    one = [np.array([value], np.int32) for value in (life.run_len, life.limit)]
    noise = Noise(np.zeros(1, np.uint64), np.zeros(1, np.int32), np.zeros(1, np.int32))
    return proposer.propose(BatchView([view], one[0], np.ones(1, np.bool_), one[1], noise, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_after_each_commit_the_cache_and_the_drafts_are_those_of_a_fresh_prefill(kind: str, tmp_path: Path) -> None:
    layout, k, options = KINDS[kind]
    proposer, resolved, target = layout.build(tmp_path / "x", k, **options)
    fresh, _, _ = layout.build(tmp_path / "y", k, **options)
    host = Host(proposer, resolved.traits, target, seed=layout.seed)
    compared = 0
    for _ in range(9):
        call = host.step()
        for life in call.lives if call is not None else ():
            if not life.newest_known:
                continue
            draft = at_once(fresh, life)
            tokens, parents = life.drafts[-1]
            assert draft.tokens.tolist() == tokens
            assert draft.parents is None or draft.parents.tolist() == parents
            for mine, theirs in zip(kept(proposer, life.view.id), kept(fresh, life.view.id), strict=True):
                assert len(mine) == len(life.rows)
                torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
            fresh.finish(life.view, "done")
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_given_back_at_the_end_of_requests_row_56(kind: str, tmp_path: Path) -> None:
    layout, k, options = KINDS[kind]
    proposer, resolved, target = layout.build(tmp_path / "x", k, **options)
    arena = proposer._cache.arena  # type: ignore[attr-defined]
    for seed, reason in enumerate(("done", "aborted", "preempted", "failed")):
        host = Host(proposer, resolved.traits, target, PLANS[:2], seed=seed)
        for _ in range(6):
            host.step()
        assert arena.pages_in_use > 0
        for life in host.lives:
            proposer.finish(life.view, reason)  # type: ignore[arg-type]
        arena.check_integrity([])
    host = Host(proposer, resolved.traits, target, PLANS)
    for _ in range(6):
        host.step()
    proposer.close()
    arena.check_integrity([])
