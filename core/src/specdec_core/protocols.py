"""The objects that hooks build and the decoding loop calls: proposer, verifier, controller; and what each may offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from specdec_core.draft import BatchView, BoolArray, Draft, FinishReason, RequestView, Verdict
    from specdec_core.noise import Noise
    from specdec_core.stats import StepStats


@runtime_checkable
class Proposer(Protocol):
    """Makes drafts. All calls come from one thread, in the order start, propose..., finish, and close at the end.

    An exception, or a draft out of contract, costs the step its drafts and nothing else: the host decodes plainly,
    calls `finish(request, "failed")` for the rows of that batch, and may `start` them again later.
    """

    def start(self, request: RequestView) -> None:
        """Take in a request: new, or back after preemption or failure. `request.tokens` are all ids known so far."""

    def propose(self, batch: BatchView) -> Draft:
        """Return one draft row per batch row, at most `batch.max_draft[i]` tokens (tree nodes count) in row i."""

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Release what belongs to the request; `request.tokens` are final for "done"."""

    def close(self) -> None:
        """Release everything; no call comes after it."""


@runtime_checkable
class MeasuresMemory(Protocol):
    """What a proposer may offer besides: how much it holds, weights apart, for the host's log and metrics."""

    def memory_bytes(self) -> int:
        """Return the bytes of indexes and caches held now, room for growth included; called every few seconds."""


@runtime_checkable
class Remembers(Protocol):
    """What a proposer with the trait `remembers` must offer besides: a name for what it knew before any request."""

    def memory_digest(self) -> bytes:
        """Return a digest of all texts that were there at the start, from files or elsewhere; b"" for none.

        Called once, after the proposer was made and before any `start`. Equal digests must mean equal memories, since
        the noise of a seeded run is keyed by them.
        """


@runtime_checkable
class TimesParts(Protocol):
    """What a proposer that is made of others may offer besides, for reports: how long each part took."""

    def part_seconds(self) -> Sequence[float]:
        """Return the seconds of all calls of each part so far, in the order of `MethodContext.parts`."""


@runtime_checkable
class Verifier(Protocol):
    """Decides which drafts stand. Its output distribution must be the target's unless it is registered as lossy."""

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Verify the drafts of n rows.

        draft         host form (lengths are ints, tokens flat numpy int32), checked by the host
        logits        [sum(1 + lengths), V] float32, fully processed: row by row as if it were the next token of its
                      own prefix. Row order: the newest id's row of a batch row, then its drafts in order. Read-only.
        noise         counter-based noise; index i of its arrays is logits row i
        target_draws  [sum(1 + lengths)] int64, the id that the host's sampler drew at each row: by the race with
                      Purpose.TARGET, for greedy requests the argmax. None if the host does not draw, as where the
                      verifier is a `DrawsForItself`
        greedy        [n] bool, requests that emit the most likely id at each place
        """


@runtime_checkable
class VerifiesOnDevice(Protocol):
    """What a verifier may offer besides, for logits on another device than the CPU: it decides without a read.

    A host that calls it reads what it returns together with everything else that a step has to tell, in one copy.
    """

    def verify_on_device(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Tensor:
        """Verify as `Verifier.verify` does; the ids of the draft may be on the device (`Draft.on_device`).

        So may the parents of its trees (`Draft.is_grown`). All rows of a tree have one position in `noise` then, that
        of its newest id's row, and a node's own is further by its depth.

        `logits` may be in any float dtype, with rows that have no distribution. Returns [n, 2 + depth] int64 on the
        device. In the order of the columns: the logits row where the accepted path of a batch row ends, the id that
        ends it (-1 where that row has no distribution), and the nodes of the path, as indices into the draft's flat
        arrays, -1 after its end. `specdec_core.device_verdict.host_verdict` makes a `Verdict` of it.
        """


@runtime_checkable
class DrawsForItself(Protocol):
    """What a verifier may offer besides: with `draws_for_itself` true the host draws nothing for it.

    `target_draws` is then None, and the verifier draws at the rows where it ends a text's block, and only there, which
    spares a host the draws at all other rows.
    """

    @property
    def draws_for_itself(self) -> bool:
        """Whether the host need not draw; read once."""


@runtime_checkable
class Controller(Protocol):
    """Chooses how many drafts each request may get, below the limits that the host has already applied."""

    def limit(self, requests: Sequence[RequestView], k: Sequence[int]) -> Sequence[int]:
        """Return one limit a request, each in 0..k[i]; 0 switches speculation off for that row in this step."""

    def observe(self, stats: StepStats) -> None:
        """See what a step did."""


class Costs(Protocol):
    """What steps have cost so far, in milliseconds, as the host measured them while it decoded; the same in all hosts.

    Both calls take an array of any shape and return one of the same shape, or None while too little was measured.
    """

    def step_ms(self, rows: npt.ArrayLike) -> npt.NDArray[np.float64] | None:
        """Return the time of a step that runs so many rows, newest ids and drafts of all requests; drafting excluded.

        Never less for more rows. Between widths that were measured it is interpolated, beyond them it is extended.
        """

    def draft_ms(self, most: npt.ArrayLike) -> npt.NDArray[np.float64] | None:
        """Return the time of a call for drafts in which no request may get more than so many; 0 means for none."""


@runtime_checkable
class ReadsCosts(Protocol):
    """What a controller may offer besides: it is given the measured costs."""

    def use_costs(self, costs: Costs) -> None:
        """Keep the object, which the host goes on to update. Called once, before any other call."""


@runtime_checkable
class Trims(Protocol):
    """What a controller may offer besides: it cuts drafts after they were made and before the target runs them.

    It is shown drafts of point masses alone. They are fixed by what is known before the target's answer, so that a cut
    at any place leaves the distribution of the output as it is. A drawn draft is not: one that is dropped because of
    its own estimate leaves its place to the others, and the distribution that it was drawn from is no longer right.
    See docs/controllers.md.
    """

    def trim(self, requests: Sequence[RequestView], confidence: Sequence[npt.NDArray[np.float32]]) -> Sequence[int]:
        """Return for each request how many of its drafts are kept, 0..len(confidence[i]), the likeliest first.

        `confidence[i]` has the `Draft.confidence` of its drafts, none above that of its parent, and is empty where
        there are none or they may not be cut. `specdec_core.draft.likeliest` tells which drafts stay.
        """


@runtime_checkable
class ForgetsRequests(Protocol):
    """What a controller may offer besides, to keep no more state than there are requests."""

    def finished(self, request_ids: Sequence[str]) -> None:
        """Drop what is known of requests that ended; those that were preempted come back and are not named."""
