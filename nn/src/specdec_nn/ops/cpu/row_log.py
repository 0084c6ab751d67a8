"""The log of rows that a recurrent state may have to take back, inside of compiled code; knows no op."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any

from specdec_nn.cache.states import KEEP, PENDING, ROWS, SLOT, START
from specdec_nn.ops.cpu.jit import njit


@njit(nogil=True)
def note(job: Any, log: Any, new: Any) -> None:
    """Keep in a log what may be taken back; each row comes from one that is not before it.

    job  one line of the table of a `StateStep`; log [slots, rows, ...]; new [rows of the step, ...]
    """
    start, pending, keep = job[START], job[PENDING], job[KEEP]
    own = log[job[SLOT]]
    for at in range(pending + job[ROWS] - keep):
        own[at] = own[at + keep] if at + keep < pending else new[start + at + keep - pending]
