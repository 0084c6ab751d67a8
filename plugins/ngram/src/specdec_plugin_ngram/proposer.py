"""The proposer `ngram`: one index a request, kept up to date from the request's ids; knows no device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdec_core.draft import Draft
from specdec_core.errors import SpecdecError
from specdec_plugin_ngram.estimates import LONGEST, chances
from specdec_plugin_ngram.index import Index

if TYPE_CHECKING:
    from specdec_core.draft import BatchView, FinishReason, IntArray, RequestView
    from specdec_plugin_ngram.options import NgramOptions

WARM_UP = (1, 2, 1, 2, 1)


class NgramProposer:
    """Prompt lookup on the CPU: the longest suffix that occurred before, then what followed it.

    A step costs O(new ids) a request, and nothing for a request that may not draft: its ids are taken in when it may.
    """

    def __init__(self, options: NgramOptions, vocab_size: int) -> None:
        """Compile, or load from numba's cache, what a step runs; ids from vocab_size on never enter a draft."""
        self._options = options
        self._vocab_size = vocab_size
        self._indexes: dict[str, Index] = {}
        self._index(np.asarray(WARM_UP, np.int32)).propose(np.asarray(WARM_UP, np.int32), 1, np.empty(1, np.int32), 0)

    def start(self, request: RequestView) -> None:
        """Index all ids known so far; whatever was kept under this id is replaced."""
        self._indexes[request.id] = self._index(request.tokens)

    def propose(self, batch: BatchView) -> Draft:
        """Return one chain a row with each id's probability, empty for a row inside its prompt."""
        limits = batch.max_draft.tolist()
        newest_known = batch.newest_known.tolist()
        tokens = np.empty(sum(limits), np.int32)
        confidence = np.empty(len(tokens), np.float32)
        lengths: list[int] = []
        total = 0
        for request, limit, known in zip(batch.requests, limits, newest_known, strict=True):
            count = 0
            if known and limit:
                index = self._of(request.id)
                count = index.propose(request.tokens, limit, tokens, total)
                if count:
                    confidence[total : total + count] = chances(min(index.repeated, LONGEST), count)
            lengths.append(count)
            total += count
        return Draft(lengths=lengths, tokens=tokens[:total], confidence=confidence[:total])

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Drop the request's index, whatever the reason: `start` builds it again."""
        self._indexes.pop(request.id, None)

    def close(self) -> None:
        """Drop all indexes."""
        self._indexes.clear()

    def memory_bytes(self) -> int:
        """Return the bytes held for all requests."""
        return sum(index.memory_bytes() for index in self._indexes.values())

    def _index(self, tokens: IntArray) -> Index:
        """Return an index of tokens [n] int32."""
        index = Index(
            self._options.prompt_lookup_min,
            self._options.prompt_lookup_max,
            latest=self._options.match == "latest",
            vocab_size=self._vocab_size,
            room=len(tokens),
        )
        index.extend(tokens)
        return index

    def _of(self, request_id: str) -> Index:
        """Return a request's index."""
        index = self._indexes.get(request_id)
        if index is None:
            message = f"ngram: request {request_id!r} is not known; call start(request) before propose(batch)"
            raise SpecdecError(message)
        return index
