"""The state of one request while it lives: ids, how far the target has run, pages, limits and results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specdec_core.draft import IntArray
from specdec_core.host.handed import HandedRequest, KnownIds
from specdec_core.metrics import SpecMetrics
from specdec_engine.outputs import Logprobs, StopKind
from specdec_engine.sampling.grammar_state import GrammarState
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.stream import TextStream
from specdec_nn.cache.arena import Segment
from specdec_nn.ops.ancestor_bits.reference import depths

if TYPE_CHECKING:
    from specdec_engine.sampling.pipeline import Pipeline


class Request:
    """One sample of a prompt; `view` is the `RequestView` that proposers see.

    `run_len` positions have been run by the target and kept. After the prompt, exactly one known id (the newest) has
    not been run, unless the request comes back from a preemption.
    """

    def __init__(
        self,
        request_id: str,
        seq_index: int,
        prompt: IntArray,
        params: SamplingParams,
        key: int,
        arrival: int,
        tokenizer: Any = None,
    ) -> None:
        """Copy the prompt. Without a tokenizer the request has no text."""
        self.id = request_id
        self.seq_index = seq_index
        self.prompt_len = len(prompt)
        self.sampling_params = params
        self.extra: Any = None
        self.key = key
        self.arrival = arrival
        self.run_len = 0
        self.segment = Segment()
        self.metrics = SpecMetrics()
        self.finish_reason: StopKind | None = None
        self.stop_reason: int | str | None = None
        self.text = TextStream(tokenizer, params)
        # What callers get; None if they did not ask. Samples of one prompt share the prompt's, so the first has them.
        self.logprobs: list[Logprobs] | None = None if params.logprobs is None else []
        wanted = params.prompt_logprobs is not None and seq_index == 0
        self.prompt_logprobs: list[Logprobs | None] | None = [None] if wanted else None
        self.grammar: GrammarState | None = None  # of structured outputs, at the newest id
        self.pipeline: Pipeline | None = None  # what parameters do to logits, None for nothing
        self.error: str | None = None  # why the request cannot go on
        self.plain_reason: str | None = None  # why it is decoded without speculation from its start
        self.max_draft: int | None = None  # its own limit of drafts a step, 0: it is decoded without speculation
        self._ids = KnownIds(prompt)

    def __len__(self) -> int:
        """Return the number of known ids."""
        return len(self._ids)

    @cached_property
    def view(self) -> HandedRequest:
        """What plugins see of the request, one object for its whole life; made when all of that is known."""
        return HandedRequest(self.id, self.seq_index, self.prompt_len, self._ids, self.sampling_params, self.extra)

    @property
    def tokens(self) -> IntArray:
        """All known ids, read-only."""
        return self._ids.view

    @property
    def output_len(self) -> int:
        """Number of ids emitted so far."""
        return len(self._ids) - self.prompt_len

    @property
    def output_ids(self) -> list[int]:
        """Ids emitted so far."""
        ids: list[int] = self.tokens[self.prompt_len :].tolist()
        return ids

    @property
    def only_scored(self) -> bool:
        """Whether nothing is emitted: the request asks for the log-probabilities of its prompt alone."""
        return self.sampling_params.max_tokens == 0

    @property
    def newest_known(self) -> bool:
        """Whether all known ids but the newest, sampled one have been run."""
        return self.run_len == len(self) - 1 and len(self) > self.prompt_len

    @property
    def finished(self) -> bool:
        """Whether the request has ended."""
        return self.finish_reason is not None

    def append(self, ids: IntArray) -> None:
        """Add emitted ids."""
        self._ids.append(ids)


@dataclass(slots=True, eq=False)
class Work:
    """Rows of one request in one step: `ids` at positions start .. start + len(ids) - 1.

    prompt     a piece of the prompt (or, after a preemption, of ids to be run again); False for decode rows
    num_draft  how many of the ids, at the end, are drafts
    proposed   how many drafts came from the proposer, before some were cut; `asked`: whether it was to draft any
    wants      how many rows at the end need logits: 0 inside a prompt, else 1 + num_draft
    parents    [num_draft] int32 where the drafts are the nodes of a tree, as in `Draft.parents`; None for a chain.
               The ids are then the newest one and the nodes
    ancestors  [1 + num_draft, words] int64, the bits of `specdec_nn.ops.ancestor_bits.reference` of these ids; None for
               a chain
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

    @property
    def positions(self) -> IntArray:
        """Position of each id, [len(ids)] int32; that of a tree's node is `start` and its depth."""
        if self.ancestors is not None:
            positions: IntArray = depths(self.ancestors) + np.int32(self.start)
            return positions
        return np.arange(self.start, self.start + len(self.ids), dtype=np.int32)

    @property
    def draft_depth(self) -> int:
        """How many drafts stand one behind the other on the longest path."""
        return self.num_draft if self.parents is None else int(self.positions.max()) - self.start

    def committed(self, path: IntArray | None) -> range | IntArray:
        """Return which rows stay, given the accepted drafts (None: no row was drawn at); a range unless of a tree."""
        if self.parents is None or path is None:
            return range(len(self.ids) - self.num_draft + (0 if path is None else len(path)))
        return np.concatenate((np.zeros(1, np.int32), path + np.int32(1)))

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
