"""The target's own keys and values as a drafter's queries attend to them: what a host offers; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_core.draft import RequestView
    from specdec_core.registry.kernels import Kernels


class CommittedKeys(Protocol):
    """The keys and values of all ids of some requests but the newest one, which the target has not run yet."""

    def attend(self, layer: int, queries: Tensor, *, scaling: float, window: int | None) -> Tensor:
        """Return what one query row a request makes of a layer's keys and values, [a, heads, Dv].

        `layer` counts the target's decoder layers from 0, `queries` are [a, heads, Dk], turned as the layer's keys are.
        Scores are q k times `scaling`; with a `window` W only the last W keys are seen. Raises ContractError for a
        layer without attention, and for queries that do not fit its keys.
        """


class TargetKeys(Protocol):
    """Where a drafter finds the target's keys and values; it can read them, and writes none."""

    def of(self, requests: Sequence[RequestView]) -> CommittedKeys:
        """Return those of requests whose newest id is known and not run by the target, until `propose` returns.

        Raises ContractError for other requests, and for calls outside of `propose`.
        """

    def release(self, request: RequestView) -> None:
        """Drop what is held of a request; unknown ones are ignored."""

    def close(self) -> None:
        """Let everything go; no call comes after it."""

    def memory_bytes(self) -> int:
        """Return the bytes that are held besides the target's own keys and values."""


@runtime_checkable
class OffersTargetKeys(Protocol):
    """What a `TargetHandle` may offer besides; hosts whose handle does not refuse methods with the trait."""

    def target_keys(self, kernels: Kernels) -> TargetKeys:
        """Return the target's keys and values; raises TargetError, with the reason, where they cannot be read."""
