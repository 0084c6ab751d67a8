"""Watches a proposer at work, in the kit's driver or in the engine, and holds its drafts against the oracle's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dflash_oracle import Drafted, Oracle
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.traits import MethodTraits
from specdec_testing.recording import Call, RecordingProposer
from specdec_testing.stubs import Stub


class Wrapped(Stub):
    """A proposer that keeps its drafts as they were made, since hosts shorten what they are given."""

    def __init__(self, proposer: Any, traits: MethodTraits) -> None:
        super().__init__()
        self.traits, self._proposer = traits, proposer
        self.drafts: list[Draft] = []

    def start(self, request: RequestView) -> None:
        self._proposer.start(request)

    def propose(self, batch: BatchView) -> Draft:
        draft: Draft = self._proposer.propose(batch)
        self.drafts.append(replace(draft, lengths=list(draft.lengths or ())))
        return draft

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        self._proposer.finish(request, reason)

    def memory_bytes(self) -> int:
        return int(self._proposer.memory_bytes())


def watched(proposer: Any, traits: MethodTraits) -> RecordingProposer:
    return RecordingProposer(
        "all", hidden=traits.hidden, aux_layers=traits.aux_layers, when_off="gap", inner=Wrapped(proposer, traits)
    )


@dataclass
class Moment:
    """One request that might draft in one call: the rows it has been given since its start, and what was drafted."""

    name: str
    rows: list[tuple[int, Tensor]]
    newest: int
    limit: int
    tokens: list[int]
    flat: slice  # of the call's draft
    draft: Draft


def moments(recorder: RecordingProposer) -> Iterator[Moment]:
    """Yield what each request that may draft knew, call after call."""
    rows: dict[str, list[tuple[int, Tensor]]] = {}
    assert isinstance(recorder.inner, Wrapped)
    for event in recorder.events:
        if event[0] == "start":
            rows[str(event[1])] = []
        if event[0] != "propose":
            continue
        index = int(str(event[1]))
        call, draft = recorder.calls_seen[index], recorder.inner.drafts[index]
        ends = np.cumsum([0, *(draft.lengths or ())]).tolist()
        for i, name in enumerate(call.request_ids):
            rows[name] += given(call, i)
            flat = slice(ends[i], ends[i + 1])
            tokens = draft.tokens[flat].tolist()
            if call.max_draft[i] == 0:
                assert tokens == [], "a row that may not draft is empty"
                continue
            newest = call.tokens[i][call.run_len[i]]
            yield Moment(name, list(rows[name]), newest, call.max_draft[i], tokens, flat, draft)


def given(call: Call, i: int) -> list[tuple[int, Tensor]]:
    """Return the rows that a call brought for one request: positions, and the states that are read side by side."""
    assert call.rows is not None
    mine = np.flatnonzero(call.rows.request == i).tolist()
    states = call.rows.hidden if call.rows.aux is None else call.rows.aux.flatten(1)
    assert states is not None
    return [(int(call.rows.positions[r]), states[r]) for r in mine]


@dataclass
class Agreement:
    """How far drafts were compared: how many of each request, and the smallest gap that one of them rests on."""

    drafted: dict[str, int] = field(default_factory=dict)
    margin: float = math.inf
    confidence_error: float = 0.0
    gaps: int = 0


def agreement(recorder: RecordingProposer, oracle: Oracle, k: int) -> Agreement:
    """Assert that each draft begins the oracle's whole block of k, and that the layout of rows was the contract's."""
    assert recorder.layout_problems() == []
    found = Agreement()
    for moment in moments(recorder):
        wanted = oracle.draft(moment.rows, moment.newest, moment.limit, whole=k)
        assert moment.tokens == wanted.tokens, f"{moment.name} with {len(moment.rows)} rows"
        found.margin = min(found.margin, wanted.margin)
        found.drafted[moment.name] = found.drafted.get(moment.name, 0) + len(moment.tokens)
        found.gaps += len(moment.rows) < moment.rows[-1][0] + 1
        found.confidence_error = max(found.confidence_error, _confidence_error(moment, wanted))
    return found


def _confidence_error(moment: Moment, wanted: Drafted) -> float:
    own = moment.draft.confidence
    assert (own is None) == (not wanted.confidence)
    if own is None:
        return 0.0
    return float(np.abs(own[moment.flat] - np.cumprod(wanted.confidence)).max())
