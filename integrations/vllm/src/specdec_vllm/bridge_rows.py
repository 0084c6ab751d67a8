"""Which rows of a step of vLLM's target stay, and in the shifted layout; knows no runner, no method and no proposer.

vLLM runs the rows of all requests flat, one request after the other: for each the ids that it had not run, then its
drafts. Of the drafts those stay that were accepted; the rows of the others are at the end of the request's rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specdec_core.draft import BoolArray, IntArray, Rows
from specdec_core.traits import MethodTraits
from specdec_vllm.views import SeenRequest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Step:
    """What vLLM's runner knows after it has sampled; B rows of the batch, N rows of the forward.

    names      [B] the request of each row
    scheduled  ids that each request ran, its drafts included
    drafted    drafts that each request had verified; none for requests without
    computed   [B or more] positions that each request had run before this step
    sampled    [B] new ids of each row; none inside a prompt
    lengths    [B or more] known ids of each row, the new ones included
    table      [B or more, positions] int32, the known ids
    hidden     [N or more, H] final hidden states
    aux        one [N or more, H] for each layer that was asked for, None if none was
    preempted  requests that lost their cache before this step
    """

    names: Sequence[str]
    scheduled: Mapping[str, int]
    drafted: Mapping[str, Sequence[int]]
    computed: Any
    sampled: Sequence[Sequence[int]]
    lengths: Any
    table: Any
    hidden: Tensor
    aux: Sequence[Tensor] | None
    preempted: Collection[str] = ()


@dataclass(frozen=True)
class Span:
    """The rows of one request that stay: `count` rows from position `start` on, at `offset` in the forward.

    sampled  the newest id was drawn in this step; False inside a prompt
    """

    offset: int
    start: int
    count: int
    sampled: bool

    @property
    def end(self) -> int:
        """Positions that the target has run and kept."""
        return self.start + self.count


def spans(step: Step) -> list[Span]:
    """Return the rows that stay, one span for each row of the batch. Raises ValueError if vLLM's counts do not fit."""
    found, offset = [], 0
    for place, (name, new) in enumerate(zip(step.names, step.sampled, strict=True)):
        ran, drafts = step.scheduled[name], len(step.drafted.get(name, ()))
        rejected = drafts - max(len(new) - 1, 0)
        span = Span(offset, int(step.computed[place]), ran - rejected, bool(len(new)))
        known = int(step.lengths[place])
        if rejected < 0 or span.end >= known or (span.sampled and span.end != known - 1):
            message = (
                f"request {name}: {ran} ids run from {span.start} on, {drafts} of them drafts, and {len(new)} "
                f"ids drawn do not make {known} known ids"
            )
            raise ValueError(message)
        found.append(span)
        offset += ran
    return found


def rows_of(
    step: Step, traits: MethodTraits, requests: Sequence[SeenRequest], kept: Sequence[Span], gap: BoolArray
) -> Rows:
    """Return the rows of some requests as the traits ask for them; states are copies, since vLLM uses its own again."""
    import torch

    last = traits.rows == "last"
    counts = np.array([min(span.count, 1) if last else span.count for span in kept], np.int32)
    positions = [np.arange(span.end - n, span.end, dtype=np.int32) for span, n in zip(kept, counts, strict=True)]
    index = [span.offset + p.astype(np.int64) - span.start for span, p in zip(kept, positions, strict=True)]
    tokens = [request.tokens[p + 1] for request, p in zip(requests, positions, strict=True)]
    chosen = torch.from_numpy(_flat(index, np.int64)).to(step.hidden.device)
    aux = None
    if traits.aux_layers:
        if step.aux is None or len(step.aux) != len(traits.aux_layers):
            have = 0 if step.aux is None else len(step.aux)
            message = f"states of the layers {list(traits.aux_layers)} were asked for, and vLLM's target gave {have}"
            raise ValueError(message)
        aux = torch.stack([layer[chosen] for layer in step.aux], dim=1)
    return Rows(
        request=np.repeat(np.arange(len(kept), dtype=np.int32), counts),
        positions=_flat(positions, np.int32),
        tokens=_flat(tokens, np.int32),
        hidden=step.hidden[chosen] if traits.hidden else None,
        aux=aux,
        gap=gap,
    )


def _flat(parts: Sequence[IntArray | npt.NDArray[np.int64]], dtype: Any) -> Any:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
