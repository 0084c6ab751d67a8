"""A head whose forwards over few rows are captured as graphs; it knows no head, and picks no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

from specdec_nn.cache.arena import Capture, KVArena
from specdec_nn.graphs import Replayed
from specdec_nn.ops.attention.reference import AttentionStep

Head = TypeVar("Head")


class ReplayedHead:
    """A head after `specdec_nn.drafters.hidden_state.RowHead`; one piece of work for each depth, as a head may differ.

    States that `forward` returns are overwritten by its next call with this depth and shape.
    """

    def __init__(self, head: Any, capture: Capture) -> None:
        """Take the head, and how to capture."""
        self._head = head
        self._capture = capture
        self._replayed: dict[int, Replayed] = {}

    def __getattr__(self, name: str) -> Any:
        """Return everything else as the head has it."""
        return getattr(self._head, name)

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Return output states [N, H] of rows, replayed where that can be."""
        if depth not in self._replayed:

            def work(step: AttentionStep, arena: KVArena, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
                ids, states, places = given
                return (self._head.forward(ids, states, places, arena, step, depth),)

            self._replayed[depth] = Replayed(work, self._capture)
        outputs = self._replayed[depth].run(step, arena, (tokens, features, positions))
        if outputs is None:
            states: Tensor = self._head.forward(tokens, features, positions, arena, step, depth)
            return states
        return outputs[0][: len(tokens)]


def replayed(head: Head, arena: KVArena) -> Head:
    """Return the head with its forwards captured, if those that write to this arena are to be."""
    return head if arena.capture is None else cast(Head, ReplayedHead(head, arena.capture))
