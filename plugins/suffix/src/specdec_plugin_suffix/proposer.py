"""The proposer `suffix`: keeps a cache up to date with a host's requests, and drafts from it; knows no trie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.draft import Draft
from specdec_core.errors import SpecdecError
from specdec_plugin_suffix.cache import Entry, SuffixCache
from specdec_plugin_suffix.forest import MakeForest, Rules

if TYPE_CHECKING:
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.draft import BatchView, FinishReason, RequestView
    from specdec_plugin_suffix.options import SuffixOptions, SuffixRequestOptions


@dataclass(slots=True, eq=False)
class _Known:
    """A request: its entry, how many of its ids the cache has, and how many are its prompt."""

    entry: Entry
    size: int
    prompt: int


def make(ctx: MethodContext[SuffixOptions], build: ProposerBuild) -> SuffixProposer:
    """Build the proposer on the best installed backend; a cache file is read now."""
    return SuffixProposer(ctx.options, build.target.info.vocab_size, build.kernels.get("suffix_forest"))


class SuffixProposer:
    """Suffix decoding on the CPU (arXiv 2411.04975): the likeliest continuation of the most promising match.

    A step costs O(new ids), and nothing for a request that may not draft: its ids are taken in when it may. A request
    that comes back after preemption goes on with the response that is shared already.
    """

    def __init__(self, options: SuffixOptions, vocab_size: int, forest: MakeForest) -> None:
        """Make the cache; raises SpecdecError if `load_cache` cannot be read. Ids from vocab_size on end drafts."""
        self._options = options
        self._vocab_size = vocab_size
        self._tree = options.tree_drafts
        self._cache = SuffixCache(
            options.suffix_decoding_max_tree_depth,
            options.suffix_decoding_max_cached_requests,
            max_tokens=options.max_cached_tokens,
            max_bytes=options.max_cached_bytes,
            time_to_live=options.time_to_live,
            forest=forest,
        )
        if options.load_cache is not None:
            self._cache.merge(options.load_cache)
        self._known: dict[str, _Known] = {}

    def start(self, request: RequestView) -> None:
        """Take in all ids known so far; a request of that id that was not finished is stopped first."""
        if request.id in self._known:
            self._stop(request.id)
        options: SuffixRequestOptions | None = request.extra
        tokens, prompt = request.tokens, request.prompt_len
        entry = self._cache.start(
            request.id,
            tokens[:prompt],
            namespace="" if options is None else options.namespace,
            response=tokens[prompt:],
            rules=self._rules(options),
        )
        self._known[request.id] = _Known(entry, len(tokens), prompt)

    def propose(self, batch: BatchView) -> Draft:
        """Return one path or tree a row, empty for a row inside its prompt, with each id's probability."""
        limits = batch.max_draft.tolist()
        newest_known = batch.newest_known.tolist()
        room = sum(limits)
        out = np.empty(3 * room, np.int32)
        step, lengths, total = self._cache.step, list[int](), 0
        for request, limit, newest in zip(batch.requests, limits, newest_known, strict=True):
            count = 0
            known = self._of(request.id)
            if newest and limit:
                tokens = request.tokens
                first = known.size
                known.size = len(tokens)
                count = step(known.entry, tokens, first, max(first, known.prompt), limit, out, total, room)
            lengths.append(count)
            total += count
        confidence = out[2 * room : 2 * room + total].view(np.float32)
        parents = out[room : room + total] if self._tree else None
        return Draft(lengths=lengths, tokens=out[:total], parents=parents, confidence=confidence)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Stop a request; its response stays shared, to its last id if it is done."""
        known = self._known.get(request.id)
        if known is None:
            return
        if reason == "done":
            first = known.size
            self._cache.take_in(known.entry, request.tokens, first, max(first, known.prompt))
        self._stop(request.id)

    def close(self) -> None:
        """Write the cache file, if one is to be written; raises SpecdecError if that fails."""
        for request_id in list(self._known):
            self._stop(request_id)
        if self._options.save_cache is not None:
            self._cache.save(self._options.save_cache)

    def memory_digest(self) -> bytes:
        """Return a digest of the cache file that was loaded; see `specdec_core.protocols.Remembers`."""
        return self._cache.files_digest()

    def memory_bytes(self) -> int:
        """Return the bytes in use for shared responses, and held for running requests."""
        stats = self._cache.stats()
        return stats.used_bytes + stats.own_bytes

    def _stop(self, request_id: str) -> None:
        del self._known[request_id]
        self._cache.stop(request_id)

    def _rules(self, options: SuffixRequestOptions | None) -> Rules:
        """Return the method's rules with a request's own in their place."""
        factor = self._options.suffix_decoding_max_spec_factor
        least = self._options.suffix_decoding_min_token_prob
        if options is not None:
            factor = factor if options.max_spec_factor is None else options.max_spec_factor
            least = least if options.min_token_prob is None else options.min_token_prob
        return Rules(
            max_factor=factor,
            min_probability=least,
            tree=self._tree,
            match_whole=self._options.match_whole_context,
            vocabulary=self._vocab_size,
        )

    def _of(self, request_id: str) -> _Known:
        known = self._known.get(request_id)
        if known is None:
            message = f"suffix: request {request_id!r} is not known; call start(request) before propose(batch)"
            raise SpecdecError(message)
        return known
