"""Which rows of a step of vLLM's target stay, and in the shifted layout; knows no runner, no method and no proposer.

vLLM runs the rows of all requests flat, one request after the other: for each the ids that it had not run, then its
drafts. Of the drafts those stay that were accepted; the rows of the others are at the end of the request's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_core.host.verified import Answers
from specdec_core.traits import MethodTraits
from specdec_vllm.views import SeenRequest

if TYPE_CHECKING:
    from torch import Tensor

Commit = Callable[..., None]
Answer = Callable[[SeenRequest, Answers], None]


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


def commit(step: Step, traits: MethodTraits, requests: Sequence[SeenRequest], kept: Sequence[Span], to: Commit) -> None:
    """Give the rows that stay to `to`, `ProposerRunner.commit`, with the states that the traits ask for.

    Raises ValueError if vLLM's target does not give the states of the layers that were asked for.
    """
    aux = _stacked(step, traits)
    for request, span in zip(requests, kept, strict=True):
        rows = slice(span.offset, span.offset + span.count)
        hidden = step.hidden[rows] if traits.hidden else None
        to(request, span.start, span.count, hidden, None if aux is None else aux[rows])


def answer(step: Step, requests: Sequence[SeenRequest], top: tuple[Tensor, Tensor], to: Answer) -> None:
    """Give what the target answered at the newest id and the drafts of each request to `to`, `ProposerRunner.answer`.

    `top` are the most likely ids at all rows whose logits vLLM had, and their log-probabilities: one row for each row
    of the batch, and one for each draft. Raises ValueError if vLLM's counts do not fit.
    """
    ids, logprobs = (part.cpu().numpy() for part in top)
    at = 0
    for place, (name, new, request) in enumerate(zip(step.names, step.sampled, requests, strict=True)):
        drafts = step.drafted.get(name, ())
        rows = slice(at, at + 1 + len(drafts))
        at = rows.stop
        if len(new):
            newest = int(step.computed[place]) + step.scheduled[name] - len(drafts) - 1
            tokens = np.array([step.table[place, newest], *drafts], np.int32)
            path = np.arange(len(new) - 1, dtype=np.int32)
            to(request, Answers.of(tokens, None, path, ids[rows], logprobs[rows]))
    if at != len(ids):
        message = f"{at} rows were to be drawn from, and vLLM had logits of {len(ids)}"
        raise ValueError(message)


def _stacked(step: Step, traits: MethodTraits) -> Tensor | None:
    """Return the states of all rows of the forward, [rows, layers, H]; None if none were asked for."""
    import torch

    if not traits.aux_layers:
        return None
    if step.aux is None or len(step.aux) != len(traits.aux_layers):
        have = 0 if step.aux is None else len(step.aux)
        message = f"states of the layers {list(traits.aux_layers)} were asked for, and vLLM's target gave {have}"
        raise ValueError(message)
    return torch.stack(list(step.aux), dim=1)
