"""The compact op on a CPU: one compiled call moves the rows of all layers, from a table of addresses."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from specdec_core.draft import IntArray
from specdec_nn.ops.compact.reference import Layers, addresses, compact_reference
from specdec_nn.ops.cpu.elements import copy_bytes
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.turns import one_at_a_time

ALONE = 256 * 1024  # bytes that one core moves sooner than it wakes the others


@njit(nogil=True)
def _move(place: Any, sources: Any, targets: Any, page_size: int) -> None:
    """Move rows of one tensor, in order."""
    for head in range(place[5]):
        base = place[0] + head * place[2]
        for n in range(len(sources)):
            page, goal = sources[n] // page_size, targets[n] // page_size
            source = base + page * place[1] + (sources[n] - page * page_size) * place[3]
            target = base + goal * place[1] + (targets[n] - goal * page_size) * place[3]
            copy_bytes(source, target, place[4])


@one_at_a_time
@njit(parallel=True, nogil=True)
def _compact(table: Any, sources: Any, targets: Any, page_size: int) -> None:
    if len(table) * len(sources) * table[0, 4] * table[0, 5] <= ALONE:
        for n in range(len(table)):
            _move(table[n], sources, targets, page_size)
    else:
        for n in prange(len(table)):
            _move(table[n], sources, targets, page_size)


def compact(layers: Layers, sources: IntArray, targets: IntArray, plans: dict[Any, Any]) -> None:
    """Move rows in all layers; see `compact_reference` for arguments, shapes and meaning."""
    if not layers or layers[0][0].device.type != "cpu":
        compact_reference(layers, sources, targets, plans)
        return
    table = plans.get("numba")
    if table is None:
        table = plans["numba"] = np.array(addresses(layers), np.int64)
    _compact(table, sources.astype(np.int64), targets.astype(np.int64), layers[0][0].shape[2])
