"""A proposer that keeps copies of all that a host shows it, and the check that this follows the shifted layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView, Rows, VerifiedRows
from specdec_core.traits import MethodTraits, RowsNeeded, WhenOff
from specdec_testing.stubs import Null, Stub


@dataclass(frozen=True)
class Call:
    """One `propose` call: everything in the batch view, copied.

    request_ids, prompt_len, tokens, run_len, newest_known, max_draft   one entry a batch row
    rows    the target rows, arrays and tensors copied
    verified  what the target answered at the rows of the step before
    draft   the draft that was returned
    """

    request_ids: list[str]
    prompt_len: list[int]
    tokens: list[list[int]]
    run_len: list[int]
    newest_known: list[bool]
    max_draft: list[int]
    rows: Rows | None
    draft: Draft
    verified: VerifiedRows | None = None


class RecordingProposer(Stub):
    """Records every call, and drafts what `inner` drafts (by default nothing).

    calls_seen   one `Call` a propose
    events       ("start", id, known ids) and ("finish", id, known ids, reason), in order with ("propose", index)
    """

    def __init__(
        self,
        rows: RowsNeeded = "all",
        *,
        hidden: bool = True,
        aux_layers: Sequence[int] = (),
        when_off: WhenOff = "catch_up",
        max_tokens: int | None = None,
        max_position: int | None = None,
        verified_top_k: int = 0,
        inner: Stub | None = None,
    ) -> None:
        """Set the traits from the arguments."""
        super().__init__()
        self.inner = inner if inner is not None else Null()
        self.traits = MethodTraits(
            shape=self.inner.traits.shape,
            rows=rows,
            hidden=hidden,
            aux_layers=tuple(aux_layers),
            when_off=when_off,
            max_tokens=max_tokens,
            max_position=max_position,
            verified_top_k=verified_top_k,
            draft_distribution=self.inner.traits.draft_distribution,
            shares_noise=self.inner.traits.shares_noise,
        )
        self.calls_seen: list[Call] = []
        self.events: list[tuple[object, ...]] = []

    def start(self, request: RequestView) -> None:
        """Record and pass on."""
        super().start(request)
        self.events.append(("start", request.id, request.tokens.tolist()))
        self.inner.start(request)

    def propose(self, batch: BatchView) -> Draft:
        """Record, with the inner draft."""
        self.calls += 1
        draft = self.inner.propose(batch)
        self.events.append(("propose", len(self.calls_seen)))
        self.calls_seen.append(
            Call(
                request_ids=[request.id for request in batch.requests],
                prompt_len=[request.prompt_len for request in batch.requests],
                tokens=[request.tokens.tolist() for request in batch.requests],
                run_len=[int(n) for n in batch.run_len],
                newest_known=[bool(known) for known in batch.newest_known],
                max_draft=[int(m) for m in batch.max_draft],
                rows=None if batch.rows is None else copy_rows(batch.rows),
                draft=draft,
                verified=batch.verified,
            )
        )
        self.drafted += len(draft.tokens)
        return draft

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Record and pass on."""
        super().finish(request, reason)
        self.events.append(("finish", request.id, request.tokens.tolist(), reason))
        self.inner.finish(request, reason)

    def layout_problems(self) -> list[str]:
        """Return what contradicts the shifted layout in the recorded calls; an empty list if nothing does."""
        problems: list[str] = []
        delivered: dict[str, int] = {}
        starts = [event for event in self.events if event[0] in ("start", "propose")]
        for event in starts:
            if event[0] == "start":
                delivered[str(event[1])] = -1
                continue
            index = int(str(event[1]))
            call = self.calls_seen[index]
            found = [f"rows are missing although traits ask for {self.traits.rows!r}"] if call.rows is None else []
            if call.rows is not None:
                found = _rows_problems(call, call.rows, delivered, self.traits)
            problems += [f"call {index}: {problem}" for problem in found + _counts_problems(call)]
        return problems


def copy_rows(rows: Rows) -> Rows:
    """Return target rows that share no memory with the host's."""
    return Rows(
        request=rows.request.copy(),
        positions=rows.positions.copy(),
        tokens=rows.tokens.copy(),
        hidden=None if rows.hidden is None else rows.hidden.detach().clone(),
        aux=None if rows.aux is None else rows.aux.detach().clone(),
        gap=rows.gap.copy(),
    )


def _counts_problems(call: Call) -> list[str]:
    """Check `run_len` and `newest_known` against the known ids, and that prompt rows get no drafts."""
    problems = []
    for i, (known, run) in enumerate(zip(call.tokens, call.run_len, strict=True)):
        if not 0 <= run < len(known):
            problems.append(f"row {i}: {run} positions run of {len(known)} known ids")
        if call.newest_known[i] != (run == len(known) - 1 >= call.prompt_len[i]):
            problems.append(f"row {i}: newest_known is {call.newest_known[i]} with {run} run of {len(known)} known")
        if not call.newest_known[i] and call.max_draft[i]:
            problems.append(f"row {i}: inside its prompt and asked for {call.max_draft[i]} drafts")
    return problems


def _rows_problems(call: Call, rows: Rows, delivered: dict[str, int], traits: MethodTraits) -> list[str]:
    """Check one call's rows and advance `delivered`, the last position that each request was shown."""
    problems = _shape_problems(rows, traits)
    if np.any(np.diff(rows.request) < 0):
        problems.append("request indices do not ascend")
    for i, name in enumerate(call.request_ids):
        positions = rows.positions[rows.request == i]
        tokens = rows.tokens[rows.request == i]
        if not len(positions):
            continue
        known = call.tokens[i]
        if np.any(np.diff(positions) != 1):
            problems.append(f"row {i}: positions {positions.tolist()} are not consecutive")
        if positions[-1] != call.run_len[i] - 1:
            problems.append(f"row {i}: last position {positions[-1]} with {call.run_len[i]} run")
        if [known[p + 1] for p in positions if p + 1 < len(known)] != tokens.tolist():
            problems.append(f"row {i}: tokens {tokens.tolist()} are not the known ids after {positions.tolist()}")
        gap = int(positions[0]) > delivered.get(name, -1) + 1
        if traits.rows == "all" and (bool(rows.gap[i]) != gap or positions[0] <= delivered.get(name, -1)):
            problems.append(f"row {i}: starts at {positions[0]} after {delivered.get(name, -1)}, gap {rows.gap[i]}")
        if traits.rows == "last" and len(positions) != 1:
            problems.append(f"row {i}: {len(positions)} rows where only the last was asked for")
        delivered[name] = int(positions[-1])
    return problems


def _shape_problems(rows: Rows, traits: MethodTraits) -> list[str]:
    """Check that hidden states are there if and only if they were asked for, one a row."""
    problems = []
    count = len(rows.positions)
    if traits.hidden and (rows.hidden is None or rows.hidden.ndim != 2 or len(rows.hidden) != count):
        problems.append("hidden states are missing or not [rows, H]")
    if traits.aux_layers and (rows.aux is None or tuple(rows.aux.shape[:2]) != (count, len(traits.aux_layers))):
        problems.append("aux states are missing or not [rows, layers, H]")
    return problems
