"""Drafts whose ids stay on a device: laid out flat by what the host knows, which is everything but the ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_nn.device_copies import to_device

Indices = npt.NDArray[np.int64]


def flat_chains(
    chains: int, columns: Sequence[tuple[Indices, Tensor]], rows: Sequence[IntArray]
) -> tuple[Tensor, IntArray, IntArray]:
    """Return ids [sum(lengths)] int32 on the device, lengths [chains], and rows of distributions like the ids.

    columns  of each depth: the chains that are drafted there, and their ids
    rows     of each depth: the rows of their distributions
    """
    places = np.full((chains, len(columns)), -1, np.int64)
    q_row = np.full(places.shape, -1, np.int32)
    before = 0
    for depth, ((active, _), own) in enumerate(zip(columns, rows, strict=True)):
        places[active, depth] = before + np.arange(len(active))
        q_row[active, depth] = own
        before += len(active)
    ids = torch.cat([ids for _, ids in columns])
    taken = places >= 0
    return ids[to_device(places[taken], ids.device)].int(), taken.sum(axis=1, dtype=np.int32), q_row[taken]
