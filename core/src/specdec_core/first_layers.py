"""The first layers of a target as a drafter runs them: what a host offers, and the rules of a round; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from specdec_core.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_core.draft import RequestView
    from specdec_core.registry.kernels import Kernels


class FirstLayers(Protocol):
    """The target's embedding, its first E decoder layers, its final norm and its head, over rows of requests.

    Rows belong to rounds: `begin` opens one, `run` or `states` adds a row at a time to each request, and what was
    written in a round is dropped when the next one begins or the target runs. A row sees all ids of its request before
    it. Where the keys and values of those ids lie is the host's choice: those that the target has itself, so that
    nothing is computed twice, or a copy that is brought up to date by `begin`.
    """

    def begin(self, requests: Sequence[RequestView], rows: Sequence[int]) -> list[int]:
        """Begin a round for requests whose newest id is known and not run by the target; all calls are in `propose`.

        `rows` are how many rows of each request are wanted, 1 for the newest id and 1 for each draft that another one
        is to follow. Returns how many there is room for, 0..rows[i]; with 0 a request cannot be drafted for now.
        """

    def run(self, requests: Sequence[RequestView], depth: int, ids: Tensor) -> Tensor:
        """Run one row of each request, ids [a] int64, and return its logits [a, V] after layer E.

        `depth` is 0 for the newest id, then counts up by 1. The requests are some of those of `begin`, each with more
        than `depth` rows. Raises ContractError for others.
        """

    def states(self, requests: Sequence[RequestView], depth: int, ids: Tensor) -> Tensor:
        """Run one row of each request as `run` does, and return the residual stream R_E behind layer E, [a, H].

        It is what the trait `aux_layers` delivers of committed rows; final norm and head are the caller's.
        """

    def release(self, request: RequestView) -> None:
        """Drop what is held of a request; unknown ones are ignored."""

    def close(self) -> None:
        """Let everything go; no call comes after it."""

    def memory_bytes(self) -> int:
        """Return the bytes that are held besides the target's own keys and values."""


@runtime_checkable
class OffersFirstLayers(Protocol):
    """What a `TargetHandle` may offer besides; hosts whose handle does not refuse methods with the trait."""

    def first_layers(self, count: int, rows: int, kernels: Kernels) -> FirstLayers:
        """Return the first `count` layers, 1 up to all but one, after a trial that they are those of the target.

        `rows` is the most that a request gets in a round. Raises TargetError for a model whose layers cannot be run in
        part, with the reason.
        """


class Round:
    """The rows that requests were granted in a round, and which of them have run: the checks that all hosts share."""

    def __init__(self) -> None:
        """Begin with no requests."""
        self._granted: dict[str, int] = {}
        self._ran: dict[str, int] = {}

    def begin(self, names: Sequence[str], granted: Sequence[int]) -> None:
        """Open a round, and end the one before."""
        self._granted = dict(zip(names, granted, strict=True))
        self._ran = dict.fromkeys(names, 0)

    def run(self, names: Sequence[str], depth: int) -> None:
        """Count a row of each request; raises ContractError for one that is not its next, or was not granted."""
        for name in names:
            most, ran = self._granted.get(name, 0), self._ran.get(name, 0)
            if depth != ran or depth >= most:
                message = (
                    f"row {depth} of request {name!r} was to run in the target's first layers, where {ran} have run of "
                    f"the {most} that `begin` has granted"
                )
                raise ContractError(message)
            self._ran[name] = ran + 1

    def drop(self, name: str) -> None:
        """Forget a request that has ended."""
        self._granted.pop(name, None)
        self._ran.pop(name, None)

    def end(self) -> None:
        """Close the round: no row may run before the next one."""
        self._granted.clear()
        self._ran.clear()
