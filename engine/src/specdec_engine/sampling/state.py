"""What sampling remembers of one request at its newest id; it knows no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_core.draft import IntArray
from specdec_engine.requests.request import Request
from specdec_engine.sampling.grammar_state import GrammarState
from specdec_engine.sampling.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class SamplingState:
    """What moves with the ids that a request emits.

    grammar   of structured outputs, None if the text may have any form
    pipeline  what parameters do to logits, None for nothing
    """

    grammar: GrammarState | None
    pipeline: Pipeline | None

    def legal(self, request: Request, ids: IntArray) -> int:
        """Return how many of `ids`, which would follow the request's own, it can emit, counted from the first."""
        count = len(ids) if self.pipeline is None else self.pipeline.legal(request, ids)
        return count if self.grammar is None else min(count, self.grammar.legal(ids))

    def commit(self, ids: Sequence[int]) -> None:
        """Take in ids that the request has emitted."""
        if self.grammar is not None:
            self.grammar.commit(ids)
        if self.pipeline is not None:
            self.pipeline.commit(ids)
