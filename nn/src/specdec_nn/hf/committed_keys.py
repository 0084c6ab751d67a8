"""A model's keys and values of committed ids as a drafter's queries attend to them, or copies of them.

Each request has one query row, which stands where its last committed row does: it sees that row's key and those before
it, and writes none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_core.draft import RequestView
from specdec_core.errors import ContractError, TargetError
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.recomputed_layers import RecomputedLayers
from specdec_nn.ops.attention.reference import AttentionStep


def layers_with_keys(flat: FlatModel) -> dict[int, int]:
    """Return the number in an arena of each decoder layer that has attention, after the model's trial.

    Raises TargetError for a model that keeps its layers elsewhere than in one list.
    """
    calls = {flat.binding.module_of(call): call.index for call in flat.binding.calls()}
    found: dict[int, int] = {}
    for number, layer in enumerate(flat.decoder_layers()):
        own = [calls[part] for part in layer.modules() if part in calls]
        if own:
            found[number] = own[0]
    if not found:
        message = f"{type(flat.model).__name__} has no keys and values that a drafter could read"
        raise TargetError(message)
    return found


class ArenaKeys:
    """A `specdec_core.target_keys.CommittedKeys` over the pages of an arena."""

    def __init__(self, flat: FlatModel, places: dict[int, int], arena: KVArena, step: AttentionStep) -> None:
        """Take the model for its attention kernel, the arena's number of each layer, the pages, and `query_step`."""
        self._flat, self._places, self._arena, self._step = flat, places, arena, step

    def attend(self, layer: int, queries: Tensor, *, scaling: float, window: int | None) -> Tensor:
        """Return what the queries make of a layer's keys and values."""
        place = self._places.get(layer)
        if place is None:
            message = f"layer {layer} of {type(self._flat.model).__name__} has no keys and values to attend to"
            raise ContractError(message)
        k_pages, v_pages = self._arena.pages(place)
        rows, heads, dims = queries.shape
        if rows != len(self._step.seg_rows) or dims != k_pages.shape[3] or heads % k_pages.shape[1]:
            message = (
                f"queries {list(queries.shape)} do not fit layer {layer} of the target, which has {k_pages.shape[1]} "
                f"heads of {k_pages.shape[3]} keys for {len(self._step.seg_rows)} requests"
            )
            raise ContractError(message)
        none = [queries.new_zeros(rows, pages.shape[1], pages.shape[3]) for pages in (k_pages, v_pages)]
        mixed: Tensor = self._flat.binding.attention(
            queries, *none, k_pages, v_pages, self._step, scaling=scaling, window=window
        )
        return mixed


class RecomputedKeys:
    """A `specdec_core.target_keys.TargetKeys` for hosts that cannot share their own: the model runs every id again."""

    def __init__(self, flat: FlatModel, cache: DraftCache) -> None:
        """Take the model, after its trial, and a cache with room for all requests."""
        self._flat: FlatModel | None = flat
        self._places = layers_with_keys(flat)
        self._rows, self._cache = RecomputedLayers(flat, cache), cache

    def of(self, requests: Sequence[RequestView]) -> ArenaKeys:
        """Run the known ids that have not run, but for the newest, and return the keys."""
        assert self._flat is not None  # no call comes after close
        with torch.inference_mode():
            while not all(self._rows.begin(requests, [1] * len(requests))):
                pass  # a prompt runs in pieces
        step = self._cache.query_step([request.id for request in requests])
        return ArenaKeys(self._flat, self._places, self._cache.arena, step)

    def release(self, request: RequestView) -> None:
        """Give a request's rows back."""
        self._rows.release(request)

    def close(self) -> None:
        """Give everything back, and let the model go."""
        self._rows.close()
        self._flat = None

    def memory_bytes(self) -> int:
        """Return the size of the cache."""
        return self._cache.memory_bytes()
