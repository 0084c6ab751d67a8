"""What the target answered at the rows of one step, from the step that ran them to the call that delivers it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specdec_core.draft import BoolArray, IntArray, VerifiedRows


@dataclass(frozen=True, slots=True)
class Answers:
    """The rows of one request in one step: its newest id and the drafts behind it; fields as in `VerifiedRows`.

    tokens        [m] int32
    parents       [m] int32, counted within these rows, -1 for the first
    accepted      [m] bool, True for the first
    top_ids       [m, n] int32
    top_logprobs  [m, n] float32
    """

    tokens: IntArray
    parents: IntArray
    accepted: BoolArray
    top_ids: IntArray
    top_logprobs: npt.NDArray[np.float32]

    @classmethod
    def of(
        cls,
        tokens: IntArray,
        parents: IntArray | None,
        path: IntArray,
        top_ids: IntArray,
        top_logprobs: npt.NDArray[np.float32],
    ) -> Answers:
        """Return the rows of `tokens`, the newest id and its drafts.

        `parents` are those of the drafts as in `Draft.parents`, None for a chain; `path` are the accepted drafts, by
        their index among the drafts.
        """
        size = len(tokens)
        own: IntArray = np.arange(-1, size - 1, dtype=np.int32)
        if parents is not None:
            own[1:] = parents + np.int32(1)
        accepted = np.zeros(size, np.bool_)
        accepted[0] = True
        accepted[path + 1] = True
        return cls(tokens, own, accepted, top_ids, top_logprobs)

    def first(self, n: int) -> Answers:
        """Return the rows with the n most likely ids of each only."""
        return Answers(self.tokens, self.parents, self.accepted, self.top_ids[:, :n], self.top_logprobs[:, :n])


def verified_rows(answers: Sequence[Answers | None], n: int) -> VerifiedRows:
    """Return the answers of a batch, one entry a batch row and None where there are none, as `BatchView.verified`."""
    there = [one for one in answers if one is not None]
    sizes = [0 if one is None else len(one.tokens) for one in answers]
    if not there:
        none = np.empty(0, np.int32)
        nowhere = np.empty((0, n), np.int32)
        return VerifiedRows(none, none, none, np.empty(0, np.bool_), nowhere, nowhere.astype(np.float32))
    if len(answers) == 1:
        (one,) = there
        request = np.zeros(len(one.tokens), np.int32)
        return VerifiedRows(request, one.tokens, one.parents, one.accepted, one.top_ids, one.top_logprobs)
    return VerifiedRows(
        request=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        tokens=np.concatenate([one.tokens for one in there]),
        parents=np.concatenate([one.parents for one in there]),
        accepted=np.concatenate([one.accepted for one in there]),
        top_ids=np.concatenate([one.top_ids for one in there]),
        top_logprobs=np.concatenate([one.top_logprobs for one in there]),
    )


def by_request(verified: VerifiedRows, count: int) -> list[Answers | None]:
    """Return what was delivered for `count` batch rows apart, None where there is nothing; undoes `verified_rows`."""
    ends = np.searchsorted(verified.request, np.arange(count + 1)).tolist()
    found: list[Answers | None] = []
    for start, end in itertools.pairwise(ends):
        rows = slice(start, end)
        answers = Answers(
            verified.tokens[rows],
            verified.parents[rows],
            verified.accepted[rows],
            verified.top_ids[rows],
            verified.top_logprobs[rows],
        )
        found.append(answers if start < end else None)
    return found
