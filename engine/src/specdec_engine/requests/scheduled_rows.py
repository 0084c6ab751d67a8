"""The rows of one request in one step: what runs, and afterwards what was accepted and emitted there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specdec_core.draft import IntArray
from specdec_engine.requests.request import Request
from specdec_nn.ops.ancestor_bits.reference import depths

Tree = tuple[IntArray, npt.NDArray[np.int64]]  # `parents` and `ancestors` of `ScheduledRows`


def _none() -> IntArray:
    return np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class ScheduledRows:
    """Rows of one request in one step: `ids` at positions start .. start + len(ids) - 1.

    prompt       a piece of the prompt (or, after a preemption, of ids to be run again); False for decode rows
    num_draft    how many of the ids, at the end, are drafts
    wants        how many rows at the end need logits: 0 inside a prompt, else 1 + num_draft
    proposed     how many drafts came from the proposer, before some were cut; `asked`: whether it was to draft any
    parents      [num_draft] int32 where the drafts are the nodes of a tree, as in `Draft.parents`; None for a chain.
                 The ids are then the newest one and the nodes
    ancestors    [1 + num_draft, words] int64, the bits of `specdec_nn.ops.ancestor_bits.reference` of these ids; None
                 for a chain
    first_draft  where the drafts begin among those of the step, if their ids are on a device and not known here: until
                 they are read, zeros stand for them in `ids`. -1: all ids are known
    deepest      where the form of the drafts' tree is on the device with their ids: how many of them the text has room
                 for in sequence, deeper ones being placed there; until all is read, the rows stand at `start`. -1: the
                 form is known
    part         [num_draft] int32, `Draft.part` of these drafts, None where the method is of one piece
    accepted     [a] int32 the accepted drafts, by their index among the drafts, in order of depth
    emitted      [a + 1] int32 the ids emitted; none where no row wanted logits
    logits_rows  [a + 1] int32 the rows of the step's logits that emitted them
    kept         how many of the emitted ids the request keeps, after its stop rules
    """

    request: Request
    start: int
    ids: IntArray
    prompt: bool
    num_draft: int = 0
    wants: int = 0
    proposed: int = 0
    asked: bool = False
    parents: IntArray | None = None
    ancestors: npt.NDArray[np.int64] | None = None
    part: IntArray | None = None
    first_draft: int = -1
    deepest: int = -1
    accepted: IntArray = field(default_factory=_none)
    emitted: IntArray = field(default_factory=_none)
    logits_rows: IntArray = field(default_factory=_none)
    kept: int = 0

    @classmethod
    def newest(cls, request: Request, proposed: int, asked: bool) -> ScheduledRows:
        """Return the row of a request's newest id, for which a proposer `proposed` drafts if it was `asked`."""
        return cls(request, request.run_len, request.tokens[-1:], False, 0, 1, proposed, asked)

    def add_drafts(self, drafts: IntArray, tree: Tree | None, part: IntArray | None = None) -> None:
        """Let drafts run behind the newest id: a chain, or the nodes of a tree; `part` tells who made each."""
        self.part = part
        self.ids = np.concatenate((self.ids, drafts))
        self.num_draft = len(drafts)
        self.wants = 1 + len(drafts)
        if tree is not None:
            self.parents, self.ancestors = tree

    def set_drafts(self, drafts: IntArray, trees: Tree | None = None, place: int = 0) -> None:
        """Put in the ids of all drafts of the step, now that they are read, and `trees` if their form was.

        `trees` are parents and ancestors of the whole step, in which this is the decode row number `place`.
        """
        if self.first_draft >= 0 and self.num_draft:
            own = slice(self.first_draft, self.first_draft + self.num_draft)
            self.ids[len(self.ids) - self.num_draft :] = drafts[own]
            if trees is not None:
                parents, ancestors = trees
                self.parents, self.ancestors = parents[own], ancestors[own.start + place : own.stop + place + 1]
        self.first_draft = self.deepest = -1

    @property
    def positions(self) -> IntArray:
        """Position of each id, [len(ids)] int32; that of a tree's node is `start` and its depth."""
        if self.deepest >= 0:
            return np.full(len(self.ids), self.start, np.int32)
        if self.ancestors is not None:
            positions: IntArray = depths(self.ancestors) + np.int32(self.start)
            return positions
        return np.arange(self.start, self.start + len(self.ids), dtype=np.int32)

    @property
    def draft_depth(self) -> int:
        """How many drafts follow each other on the longest path."""
        return self.num_draft if self.parents is None else int(self.positions.max()) - self.start

    @property
    def committed(self) -> range | IntArray:
        """Which rows stay: all but those of drafts that were not accepted; a range unless of a tree."""
        if self.parents is None:
            return range(len(self.ids) - self.num_draft + len(self.accepted))
        return np.concatenate((np.zeros(1, np.int32), self.accepted + np.int32(1)))

    @property
    def scored(self) -> range:
        """Offsets of the rows that predict a prompt id whose log-probabilities are wanted and not there yet."""
        known = self.request.prompt_logprobs
        if known is None:
            return range(0)
        end = min(len(self.ids), self.request.prompt_len - 1 - self.start)
        return range(max(0, len(known) - 1 - self.start), end)

    def path(self, row: int) -> IntArray:
        """Return the drafts from after the newest id up to wanted row `row`, its own included; none for row 0."""
        first = len(self.ids) - self.num_draft
        if self.parents is None:
            return self.ids[first : first + row]
        path = [row] if row else []
        while path and self.parents[path[-1] - 1] >= 0:
            path.append(int(self.parents[path[-1] - 1]) + 1)
        return self.ids[np.array(path[::-1], np.int64)]
