"""Lives of requests with all that a host may do, in which each draft is compared with the oracle's as it is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mtp_models
import mtp_oracle
import numpy as np
import torch
from mtp_oracle import Chain, Row
from mtp_qwen_oracle import QwenModule
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.sources import TargetInfo
from specdec_testing.building import Built, build
from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeTarget
from specdec_testing.subject import Subject

Oracle = Callable[[Sequence[Row], Sequence[int], int, Sequence[int]], Chain]
LIVES = (
    Script("chunks", tuple(range(3, 24)), seed=1, chunk=6, limits=(4, 4, 0, 3), accept=(0, 2, 4, 1), steps=7),
    Script("short", (5,), seed=2, join=1, limits=(4, 1, 4), accept=(4, 0, 1), steps=7, preempt=3),
    Script("gap", tuple(range(50, 90)), seed=3, join=2, chunk=16, limits=(2, 4), skip=7, off=frozenset({2}), steps=6),
    Script("three", (9, 8, 7), seed=4, limits=(4,), accept=(3, 3, 0), chunk=2, steps=6, off=frozenset({1, 4})),
)


@dataclass
class Compared:
    """Passes every call on; `count` drafts were compared, `margin` is the smallest gap that one of them rests on.

    With distributions reported, those are compared and not the choices.
    """

    inner: Any
    oracle: Oracle
    rows: dict[str, list[Row]] = field(default_factory=dict)
    count: int = 0
    deepest: int = 0
    gaps: int = 0
    margin: float = float("inf")
    error: float = 0.0

    def start(self, request: RequestView) -> None:
        self.rows[request.id] = []
        self.inner.start(request)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        self.inner.finish(request, reason)

    def close(self) -> None:
        self.inner.close()

    def propose(self, batch: BatchView) -> Draft:
        assert batch.rows is not None
        states = batch.rows.hidden if batch.rows.aux is None else batch.rows.aux[:, 0]
        assert states is not None
        self.gaps += int(batch.rows.gap.sum())
        for owner, position, state in zip(batch.rows.request, batch.rows.positions, states, strict=True):
            self.rows[batch.request(owner).id].append(Row(int(position), state))
        draft: Draft = self.inner.propose(batch)
        ends = np.cumsum([0, *(draft.lengths or ())])
        for i, view in enumerate(batch.requests):
            tokens = draft.tokens[ends[i] : ends[i + 1]].tolist()
            distributions = None if draft.q is None or draft.q_row is None else draft.q_row[ends[i] : ends[i + 1]]
            wanted = int(batch.max_draft[i]) if (batch.rows.request == i).any() else 0
            assert len(tokens) == wanted
            if wanted:
                drawn = distributions is not None and bool((distributions >= 0).all())
                chain = self.oracle(self.rows[view.id], view.tokens.tolist(), wanted, tokens if drawn else ())
                self._compare(tokens, chain, view, draft.q[distributions] if drawn and draft.q is not None else None)
        return draft

    def _compare(self, tokens: list[int], chain: Chain, view: RequestView, distributions: torch.Tensor | None) -> None:
        self.count += len(tokens)
        self.deepest = max(self.deepest, len(tokens))
        assert tokens == chain.tokens, f"{view.id} at {len(view.tokens)}"
        if distributions is None:
            self.margin = min(self.margin, chain.margin)
            return
        wanted = torch.softmax(torch.stack(chain.logits) / view.sampling_params.temperature, dim=-1)
        self.error = max(self.error, float((distributions.double() - wanted).abs().max()))


def handle_of(family: str, folder: str, max_model_len: int | None = None) -> FakeTarget:
    """Return the family's model as a host shows it to proposers."""
    handle = FakeTarget(mtp_models.target(family))
    config = json.loads((Path(folder) / "config.json").read_text())
    handle.info = TargetInfo.from_config(folder, config, max_model_len)  # also beyond the model's own limit
    return handle


def built(folder: str, handle: FakeTarget, k: int = 4, **keys: Any) -> Built:
    """Settle the method for a target."""
    return build(Subject("mtp", {"model": folder, **keys}, None), handle.info, k)


def oracle_of(family: str, folder: str, tensors: Mapping[str, Tensor], running: int = 1) -> Oracle:
    """Return the oracle of so many modules of a checkpoint."""
    model = mtp_models.target(family)
    config = json.loads(Path(folder, "config.json").read_text())
    tables = {"embedding": model.get_input_embeddings().weight.detach(), "head": model.lm_head.weight.detach()}
    made = QwenModule if "qwen" in family else mtp_oracle.Module
    modules = [made(family, config, tensors, i, **tables) for i in range(running)]
    return partial(mtp_oracle.several, modules) if running > 1 else partial(mtp_oracle.reuse, modules[0])


def compared(
    family: str,
    folder: str,
    tensors: Mapping[str, Tensor],
    *,
    running: int = 1,
    k: int = 4,
    temperature: float = 0.0,
    lives: Sequence[Script] = LIVES,
    max_model_len: int | None = None,
    change: Callable[[Any], Any] = lambda proposer: proposer,
    **keys: Any,
) -> Compared:
    """Lead a proposer through the lives, and compare each draft with the oracle's over `tensors`.

    `change` makes another proposer of the one that the method makes.
    """
    handle = handle_of(family, folder, max_model_len)
    method = built(folder, handle, k, **keys)
    comparing = Compared(change(method.proposer(handle)), oracle_of(family, folder, tensors, running))
    driver = Driver(comparing, method.resolved.traits, handle, shuffle_seed=1)
    limits = [tuple(min(limit, k) for limit in life.limits) for life in lives]
    changes = [{"temperature": temperature, "limits": at_most} for at_most in limits]
    driver.run([Script(**{**life.__dict__, **keys_}) for life, keys_ in zip(lives, changes, strict=True)])
    comparing.close()
    assert not driver.problems
    return comparing
