"""What single parameters do to the logits of a request's rows, each row with its own prefix; knows no processors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.edits import Edits, Ids

GREATEST_BIAS: Final = 100.0


class Stage:
    """One parameter, or a group of them that work together."""

    def edit(self, item: ScheduledRows, first: int, edits: Edits) -> None:
        """Note what is to be done to the wanted rows of an item, the first of which is row `first`."""
        raise NotImplementedError

    def legal(self, request: Request, ids: IntArray) -> int:
        """Return how many of `ids`, which would follow the request's own, are not forbidden, counted from the first."""
        return len(ids)

    def commit(self, ids: Sequence[int]) -> None:
        """Take in ids that the request has emitted."""


class LogitBias(Stage):
    """Adds to the logits of ids, each bias cut to -100 .. 100."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        """Take the biases by id."""
        self._ids = np.array(list(biases), np.int64)
        self._values = np.clip(np.array(list(biases.values()), np.float32), -GREATEST_BIAS, GREATEST_BIAS)

    def edit(self, item: ScheduledRows, first: int, edits: Edits) -> None:
        """Note the sums."""
        for row in range(first, first + item.wants):
            edits.add(row, self._ids, self._values)


class AllowedIds(Stage):
    """Forbids all ids but some."""

    def __init__(self, allowed: Collection[int], vocab_size: int, device: torch.device) -> None:
        """Make the mask of the others, once for all rows and requests."""
        self._others = np.ones(vocab_size, np.bool_)
        self._others[list(allowed)] = False
        self._mask: Tensor = torch.from_numpy(self._others).to(device)

    def edit(self, item: ScheduledRows, first: int, edits: Edits) -> None:
        """Note the mask."""
        edits.forbid_masked(first, item.wants, self._mask)

    def legal(self, request: Request, ids: IntArray) -> int:
        """Count to the first id that is not allowed."""
        return _until(self._others[ids])


class MinTokens(Stage):
    """Forbids the ids that would end the text before it has a number of ids."""

    def __init__(self, count: int, ends: Collection[int]) -> None:
        """Take the number and the ids."""
        self._count = count
        self._ends: Ids = np.array(sorted(ends), np.int64)

    def edit(self, item: ScheduledRows, first: int, edits: Edits) -> None:
        """Note the ends for the rows that come too early."""
        missing = self._count - item.request.output_len
        if missing <= 0:
            return
        for row in range(item.wants):
            if len(item.path(row)) < missing:
                edits.forbid(first + row, self._ends)

    def legal(self, request: Request, ids: IntArray) -> int:
        """Count to the first end that comes too early."""
        early = ids[: max(0, self._count - request.output_len)]
        count = _until(np.isin(early, self._ends))
        return count if count < len(early) else len(ids)


class BadWords(Stage):
    """Forbids the last id of sequences of ids where the ids before it have just been emitted, as vLLM does.

    What stands before it is looked for in the output and the drafts, not in the prompt. A sequence of one id is
    forbidden everywhere.
    """

    def __init__(self, words: Collection[tuple[int, ...]]) -> None:
        """Take the sequences, none of them empty."""
        self.singles: Ids = np.array(sorted({word[0] for word in words if len(word) == 1}), np.int64)
        self._longest = max(map(len, words))
        self._by_last: dict[int, list[tuple[tuple[int, ...], int]]] = {}  # the id before -> (all before, the last)
        for word in sorted(set(words)):
            if len(word) > 1:
                self._by_last.setdefault(word[-2], []).append((word[:-1], word[-1]))

    def edit(self, item: ScheduledRows, first: int, edits: Edits) -> None:
        """Note the single ids, and those that would complete a sequence."""
        said = self._tail(item.request)
        for row in range(item.wants):
            forbidden = self._completing([*said, *item.path(row).tolist()]) if self._by_last else []
            if len(self.singles) or forbidden:
                edits.forbid(first + row, np.concatenate((self.singles, np.array(forbidden, np.int64))))

    def legal(self, request: Request, ids: IntArray) -> int:
        """Count to the first id that completes a sequence."""
        count = _until(np.isin(ids, self.singles))
        if self._by_last:
            said = self._tail(request)
            for place, token in enumerate(ids[:count].tolist()):
                if token in self._completing(said):
                    return place
                said.append(token)
        return count

    def _tail(self, request: Request) -> list[int]:
        start = max(request.prompt_len, len(request) - self._longest + 1)
        tail: list[int] = request.tokens[start:].tolist()
        return tail

    def _completing(self, said: list[int]) -> list[int]:
        """Return the ids that would complete a sequence after `said`."""
        words = self._by_last.get(said[-1], ()) if said else ()
        return [last for before, last in words if tuple(said[-len(before) :]) == before]


def _until(wrong: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Return the index of the first true entry, or the length."""
    return int(np.argmax(wrong)) if wrong.any() else len(wrong)
