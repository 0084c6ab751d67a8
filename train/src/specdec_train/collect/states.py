"""A proposer that drafts nothing and keeps the states that the target computes while it decodes; no second pass."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.markers import hookimpl
from specdec_core.traits import MethodTraits

NAME: Final = "keeps_states"  # of the unpackaged plugin; nobody else sees it


class StateKeeper:
    """Asks by its traits for all rows with their last and aux states, and keeps them by request until they are taken.

    One that came back from a preemption is run again, and its rows are kept anew.
    """

    def __init__(self, aux_layers: tuple[int, ...]) -> None:
        """Keep states of these residual-stream indices R_k, ascending, besides the last one."""
        self.traits = MethodTraits(rows="all", hidden=True, aux_layers=aux_layers)
        self.on = True
        self._rows: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
        self._counts: dict[str, int] = {}

    def start(self, request: RequestView) -> None:
        """Begin with no rows."""
        self._rows[request.id], self._counts[request.id] = [], 0

    def propose(self, batch: BatchView) -> Draft:
        """Keep the rows that came since the last call; draft nothing."""
        rows = batch.rows
        if self.on and rows is not None and len(rows.request):
            assert rows.hidden is not None
            aux = None if rows.aux is None else rows.aux.flatten(1)
            bounds = rows.request.searchsorted(range(len(batch) + 1)).tolist()
            for i in range(len(batch)):
                start, end = bounds[i], bounds[i + 1]
                if end > start:
                    name = batch.request(i).id
                    assert rows.positions[start] == self._counts[name]
                    self._rows[name].append((rows.hidden[start:end], None if aux is None else aux[start:end]))
                    self._counts[name] += end - start
        return Draft.empty(len(batch))

    def count(self, name: str) -> int:
        """Return how many rows of a request, from its first id on, are kept."""
        return self._counts.get(name, 0)

    def take(self, name: str, count: int) -> tuple[Tensor, Tensor]:
        """Return the first rows of a request, [count, H] and [count, A * H], on the CPU."""
        kept = self._rows[name]
        last = torch.cat([hidden for hidden, _ in kept])[:count].cpu()
        parts = [aux for _, aux in kept if aux is not None]
        return last, torch.cat(parts)[:count].cpu() if parts else last[:, :0]

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Forget the request's rows."""
        self._rows.pop(request.id, None)
        self._counts.pop(request.id, None)

    def close(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._counts.clear()


class StatesPlugin:
    """What `LLM(plugins={NAME: ...})` takes for a method."""

    def __init__(self, keeper: StateKeeper) -> None:
        """Hand out this one."""
        self._keeper = keeper

    @hookimpl
    def specdec_method_traits(self) -> MethodTraits:
        """Return the keeper's traits."""
        return self._keeper.traits

    @hookimpl
    def specdec_make_proposer(self) -> StateKeeper:
        """Return the keeper."""
        return self._keeper

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `LLM` by which it is used."""
        return {"plugins": {NAME: self}, "speculative_config": {"method": NAME, "num_speculative_tokens": 1}}
