"""Compares every draft that a method made of last rows with another account of it, call by call; knows no method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.host.factory import make_proposer
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetHandle, TargetInfo


def settled(model: str | None, info: TargetInfo, **keys: Any) -> ResolvedConfig:
    """Resolve a configuration with what is installed."""
    given = {key: value for key, value in {"model": model, **keys}.items() if value is not None}
    return resolve(given, info, Registry(Catalog.discover()))


def built(model: str, target: TargetHandle, **keys: Any) -> tuple[Any, ResolvedConfig]:
    """Resolve and build; return the proposer and its configuration."""
    registry = Registry(Catalog.discover())
    resolved = resolve({"model": model, **keys}, target.info, registry)
    return make_proposer(resolved, target, registry), resolved


@dataclass
class Row:
    """What one request got in one call: the text so far, the state it was made of, its limit, ids, parents, laws."""

    text: list[int]
    state: Tensor
    limit: int
    tokens: list[int]
    parents: list[int]
    laws: Tensor | None
    law_rows: list[int]
    temperature: float


@dataclass
class Watch:
    """A proposer that keeps what it sees of another one."""

    inner: Any
    rows: list[Row] = field(default_factory=list)
    widest: int = 0

    def start(self, request: RequestView) -> None:
        """Pass it on."""
        self.inner.start(request)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Pass it on."""
        self.inner.finish(request, reason)

    def close(self) -> None:
        """Pass it on."""
        self.inner.close()

    def propose(self, batch: BatchView) -> Draft:
        """Keep what the other one made of the batch."""
        draft: Draft = self.inner.propose(batch)
        assert batch.rows is not None
        assert batch.rows.hidden is not None
        ends = np.cumsum([0, *(draft.lengths or ())])
        self.widest = max(self.widest, sum(length > 0 for length in draft.lengths or ()))
        for i, limit in enumerate(batch.max_draft.tolist()):
            own = slice(int(ends[i]), int(ends[i + 1]))
            mine = np.flatnonzero(batch.rows.request == i)
            if not limit:
                assert own.start == own.stop, "a row that may not draft is empty"
                continue
            assert batch.rows.positions[mine[-1]] == batch.run_len[i] - 1
            size = own.stop - own.start
            self.rows.append(
                Row(
                    text=batch.request(i).tokens.tolist(),
                    state=batch.rows.hidden[int(mine[-1])].clone(),
                    limit=limit,
                    tokens=draft.tokens[own].tolist(),
                    parents=list(range(-1, size - 1)) if draft.parents is None else draft.parents[own].tolist(),
                    laws=draft.q,
                    law_rows=[-1] * size if draft.q_row is None else draft.q_row[own].tolist(),
                    temperature=float(batch.request(i).sampling_params.temperature),
                )
            )
        return draft


def assert_all_are(rows: Sequence[Row], account: Callable[[Row], Any], clear: float = 1e-3) -> None:
    """Compare every row with an account of it, which must rest on clear choices."""
    margin = math.inf
    for row in rows:
        nodes = account(row)
        assert (row.tokens, row.parents) == (nodes.tokens, nodes.parents)
        margin = min(margin, nodes.margin)
    assert margin > clear


def evidence(resolved: ResolvedConfig, key: str = "method") -> str:
    """Return the reason of a decision."""
    reasons: Mapping[str, str] = {decision.key: decision.reason for decision in resolved.decisions}
    return reasons[key]
