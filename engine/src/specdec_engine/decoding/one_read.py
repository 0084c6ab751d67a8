"""The end of a step on a device other than the CPU: all that the host must know of it comes by one read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_core.device_verdict import host_verdict
from specdec_core.draft import Draft, Verdict
from specdec_engine.decoding.device_drafts import DeviceDrafts
from specdec_engine.requests.scheduled_rows import Tree
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_nn.device_copies import read

Arrays = list[npt.NDArray[Any]]


def read_draws(draws: Tensor, drawn: DrawRows, beside: Sequence[Tensor]) -> tuple[Verdict, Arrays]:
    """Return the verdict of rows without drafts, which emit what was drawn [R], and what else was to be read."""
    (ids,), others = _read([draws], drawn, beside)
    rows = np.arange(len(ids), dtype=np.int32)
    none = np.zeros(len(ids), np.int32)
    return Verdict(none, none[:0], ids.astype(np.int32), rows), others


def read_verdict(
    decided: Tensor, draft: Draft, there: DeviceDrafts | None, drawn: DrawRows, beside: Sequence[Tensor]
) -> tuple[Verdict, Arrays]:
    """Return the verdict of what was decided on the device, [n, 2 + depth], and what else was to be read.

    Drafts that are on the device are read as well, and put into the draft and into the rows that run them.
    """
    parts = [] if there is None else [part for part in (there.ids, there.parents, there.bits) if part is not None]
    (values, *found), others = _read([decided, *parts], drawn, beside)
    if found:
        draft.tokens = found[0].astype(np.int32, copy=False)
        trees: Tree | None = None
        if len(found) > 1:
            trees = found[1].astype(np.int32, copy=False), found[2]
            draft.parents = trees[0]
        for place, item in enumerate(drawn.items):
            item.set_drafts(draft.tokens, trees, place)
        drawn.place()
    return host_verdict(draft, values), others


def _read(parts: Sequence[Tensor], drawn: DrawRows, beside: Sequence[Tensor]) -> tuple[Arrays, Arrays]:
    """Read what is given, and which rows the model gave a distribution; tell `drawn` of the latter."""
    finite = [] if drawn.finite is None else [drawn.finite]
    found = read([*parts, *beside, *finite])
    if finite:
        drawn.read_finite(found.pop())
    return found[: len(parts)], found[len(parts) :]
