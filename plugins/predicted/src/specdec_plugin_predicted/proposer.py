"""The proposer `predicted`: keeps each request's place in its prediction and drafts what stands there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_core.draft import Draft
from specdec_core.errors import SpecdecError
from specdec_plugin_predicted.alignment import Alignment

if TYPE_CHECKING:
    from specdec_core.draft import BatchView, FinishReason, IntArray, RequestView
    from specdec_plugin_predicted.options import PredictedRequestOptions

NOTHING = np.empty(0, np.int32)


class PredictedProposer:
    """Drafts from the predictions that requests bring; requests without one get no drafts."""

    def __init__(self, vocab_size: int, tokenizer: Any | None) -> None:
        """Serve predictions given as ids below `vocab_size`, and as text if the host has a `tokenizer`."""
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._followed: dict[str, tuple[Alignment, int]] = {}  # by request: its place, and how many ids it has seen

    def start(self, request: RequestView) -> None:
        """Read the prediction. Raises SpecdecError for one that is invalid."""
        self._followed.pop(request.id, None)
        options: PredictedRequestOptions | None = request.extra
        if options is None or options.prediction is None:
            return
        self._followed[request.id] = Alignment(self._ids(options.prediction)), request.prompt_len

    def propose(self, batch: BatchView) -> Draft:
        """Return one chain a row: the expected next ids, none inside a prompt or where the place is not known."""
        rows = zip(batch.requests, batch.max_draft.tolist(), batch.newest_known.tolist(), strict=True)
        return Draft.of([self._row(request, limit) if known and limit else NOTHING for request, limit, known in rows])

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Drop the request's prediction, whatever the reason: `start` reads it again."""
        self._followed.pop(request.id, None)

    def close(self) -> None:
        """Drop all predictions."""
        self._followed.clear()

    def _row(self, request: RequestView, limit: int) -> IntArray:
        """Take in what the output has gained, and return the draft."""
        if request.id not in self._followed:
            return NOTHING
        alignment, seen = self._followed[request.id]
        tokens = request.tokens
        alignment.extend(tokens[seen:])
        self._followed[request.id] = alignment, len(tokens)
        return alignment.draft(limit)

    def _ids(self, prediction: str | tuple[int, ...]) -> IntArray:
        """Return a prediction's ids [m] int32."""
        if isinstance(prediction, str):
            if self._tokenizer is None:
                message = "predicted: a prediction given as text needs a tokenizer, and this host has none"
                raise SpecdecError(f"{message}; give the prediction as token ids")
            prediction = tuple(self._tokenizer.encode(prediction, add_special_tokens=False))
        ids = np.asarray(prediction, np.int64)
        wrong = ids[(ids < 0) | (ids >= self._vocab_size)]
        if len(wrong):
            message = f"predicted: the prediction has the id {wrong[0]}, expected ids in 0..{self._vocab_size - 1}"
            raise SpecdecError(f"{message}; use the target's tokenizer")
        return ids.astype(np.int32)
