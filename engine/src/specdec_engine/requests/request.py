"""One request while it lives: its ids, how far the target has run, pages, limits and results; not how it samples."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from specdec_core.draft import IntArray
from specdec_core.host.handed import HandedRequest, KnownIds
from specdec_core.metrics import SpecMetrics
from specdec_engine.outputs import Logprobs, StopKind
from specdec_engine.requests.page_keys import PageKeys
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.stream import TextStream
from specdec_nn.cache.arena import Segment


class Request:
    """One sample of a prompt; `view` is the `RequestView` that proposers see.

    `run_len` positions have been run by the target and kept, or taken over from another request. After the prompt,
    exactly one known id (the newest) has not been run, unless the request comes back from a preemption.
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
        self.page_keys = PageKeys()
        self.cache_salt: str | None = None  # its pages are shared with requests of the same salt only
        self.table = 0  # which rotary tables its rows were turned by since it last began; see `RopeLengths.table`
        self.taken = 0  # positions before run_len that were taken over since the request last ran
        self.num_cached_tokens = 0  # positions taken over before any preemption
        self.preemptions = 0
        self.metrics = SpecMetrics()
        self.finish_reason: StopKind | None = None
        self.stop_reason: int | str | None = None
        self.text = TextStream(tokenizer, params)
        # What callers get; None if they did not ask. Samples of one prompt share the prompt's, so the first has them.
        self.logprobs: list[Logprobs] | None = None if params.logprobs is None else []
        wanted = params.prompt_logprobs is not None and seq_index == 0
        self.prompt_logprobs: list[Logprobs | None] | None = [None] if wanted else None
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
