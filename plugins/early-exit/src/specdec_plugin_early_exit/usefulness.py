"""Notices a target that was not trained to be left early, whose drafts nearly never come true, and tells so once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np

from specdec_core.draft import Draft, IntArray, RequestView

DRAFTS: Final = 400  # after so many drafts it is told, if
LEAST: Final = 0.1  # fewer than this share of them came true

logger = logging.getLogger(__name__)


class Usefulness:
    """Compares drafts with the ids that their requests gained, until enough were seen."""

    def __init__(self, exit_layer: int) -> None:
        """Name the layer, for the message."""
        self._exit_layer = exit_layer
        self._last: dict[str, tuple[int, IntArray]] = {}  # known ids when it was drafted, and the draft
        self.drafted = self.accepted = 0

    def see(self, requests: Sequence[RequestView], draft: Draft) -> None:
        """Count what became of the last drafts of these requests, and keep these; one row a request."""
        if self.drafted >= DRAFTS:
            return
        ends = np.cumsum(draft.lengths or ())[:-1]
        for request, tokens in zip(requests, np.split(draft.tokens, ends), strict=True):
            before, last = self._last.get(request.id, (0, tokens[:0]))
            gained = request.tokens[before : before + len(last)]
            same = gained == last[: len(gained)]
            self.accepted += len(same) if same.all() else int(same.argmin())
            self.drafted += len(last)
            self._last[request.id] = len(request.tokens), tokens
        if self.drafted >= DRAFTS:
            self._last.clear()
            self._tell()

    def forget(self, name: str) -> None:
        """Drop what is kept of a request."""
        self._last.pop(name, None)

    def _tell(self) -> None:
        if self.accepted >= LEAST * self.drafted:
            return
        logger.warning(
            "of the first %d drafts of the target's layers up to %d only %d came true: early exit pays with targets "
            "that were trained for it, such as LayerSkip's; try another exit_layer, or another method (logged once)",
            self.drafted,
            self._exit_layer,
            self.accepted,
        )
