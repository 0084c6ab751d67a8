"""A verdict that was made on a device, and what it becomes once its numbers were read; it does no reading itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specdec_core.draft import Draft, IntArray, Verdict

Places = npt.NDArray[np.int64]


def host_verdict(draft: Draft, decided: Places) -> Verdict:
    """Return the verdict of what was read of `VerifiesOnDevice.verify_on_device`, [n, 2 + depth].

    The ids of the draft must have been read as well.
    """
    stops, last, path = decided[:, 0], decided[:, 1], decided[:, 2:]
    lengths = np.asarray(draft.lengths, np.int64)
    first = np.cumsum(lengths) - lengths
    taken = path >= 0
    accepted: IntArray = taken.sum(1, dtype=np.int32)
    nodes = path[taken]
    owner = np.repeat(np.arange(len(lengths)), accepted)
    own: IntArray = (nodes - first[owner]).astype(np.int32)
    above = own - 1 if draft.parents is None else draft.parents[nodes]  # of each node, -1 for the newest id
    ends = np.cumsum(accepted + 1) - 1
    emitted, rows = (np.empty(len(nodes) + len(stops), np.int32) for _ in range(2))
    drafted = np.ones(len(emitted), np.bool_)
    drafted[ends] = False
    emitted[drafted], emitted[ends] = draft.tokens[nodes], last
    rows[drafted], rows[ends] = first[owner] + owner + 1 + above, stops
    return Verdict(accepted, own, emitted, rows)
