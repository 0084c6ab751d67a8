"""The proposer `token_recycling`: keeps tables up to date with what a host shows, and drafts from them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.draft import Draft
from specdec_core.errors import SpecdecError
from specdec_plugin_token_recycling import table_file
from specdec_plugin_token_recycling.templates import template_of

if TYPE_CHECKING:
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.draft import BatchView, FinishReason, IntArray, RequestView, VerifiedRows
    from specdec_plugin_token_recycling.options import RecyclingOptions
    from specdec_plugin_token_recycling.table import MakeTable, Table


def make(ctx: MethodContext[RecyclingOptions], build: ProposerBuild) -> RecyclingProposer:
    """Build the proposer on the best installed backend; a file of candidates is read now."""
    table = build.kernels.get("recycling_table")
    return RecyclingProposer(ctx.options, build.target.info.vocab_size, build.num_speculative_tokens, table)


class RecyclingProposer:
    """Token recycling (arXiv 2408.08696): for each id, the ids that the target last found likely after it.

    Every verified row refreshes its id, rejected drafts included. A step costs O(rows) to learn, and
    O(nodes^2) to draft.
    """

    def __init__(self, options: RecyclingOptions, vocab_size: int, k: int, make: MakeTable) -> None:
        """Make the tables; raises SpecdecError if `load_cache` cannot be read."""
        self._options = options
        self._vocab_size = vocab_size
        self._make = make
        self._tree = options.tree != "chain"
        self._template = template_of(options.tree, options.template, k, options.candidates)
        self._tables: OrderedDict[str, Table] = OrderedDict()  # by namespace, the latest to be used last
        self._running: dict[str, tuple[str, Table]] = {}  # namespace and table of each request
        self._digest = b""
        if options.load_cache is not None:
            self._load(options.load_cache)

    def start(self, request: RequestView) -> None:
        """Find the request's table; a request of that id that was not finished is forgotten first."""
        if not self._options.shared:
            self._running[request.id] = "", self._new()
            return
        namespace = "" if request.extra is None else request.extra.namespace
        table = self._tables.get(namespace)
        if table is None:
            table = self._tables[namespace] = self._new()
        self._tables.move_to_end(namespace)
        self._running[request.id] = namespace, table
        self._forget_the_oldest()

    def propose(self, batch: BatchView) -> Draft:
        """Learn from the last step, and return one tree or chain a row, with each id's probability."""
        tables = [self._of(request.id) for request in batch.requests]
        if batch.verified is not None:
            self._learn(batch.verified, tables, batch.requests)
        limits = batch.max_draft.tolist()
        out = np.empty((2, sum(limits)), np.int32)
        confidence = np.empty(out.shape[1], np.float32)
        lengths, total, template, least = list[int](), 0, self._template, self._options.min_token_prob
        for request, table, limit in zip(batch.requests, tables, limits, strict=True):
            count = 0
            if limit:
                last = _last_two(request.tokens, 0)
                if template is None:
                    count = table.grow(last, limit, least, out, confidence, total)
                else:
                    count = table.unfold(last, limit, template, out, confidence, total)
            lengths.append(count)
            total += count
        parents = out[1, :total] if self._tree else None
        return Draft(lengths=lengths, tokens=out[0, :total], parents=parents, confidence=confidence[:total])

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Forget a request; what was learnt of it stays in its namespace."""
        if self._running.pop(request.id, None) is not None:
            self._forget_the_oldest()

    def close(self) -> None:
        """Write the file of candidates, if one is to be written; raises SpecdecError if that fails."""
        self._running.clear()
        if self._options.save_cache is not None:
            contents = {name: table.contents() for name, table in self._tables.items()}
            table_file.write(self._options.save_cache, self._options.candidates, contents)
        self._tables.clear()

    def memory_digest(self) -> bytes:
        """Return a digest of the file that was loaded; see `specdec_core.protocols.Remembers`."""
        return self._digest

    def memory_bytes(self) -> int:
        """Return the bytes held by all tables."""
        tables = {id(table): table for _, table in self._running.values()}
        tables.update((id(table), table) for table in self._tables.values())
        return sum(table.memory_bytes() for table in tables.values())

    def _new(self) -> Table:
        return self._make(self._vocab_size, self._options.candidates, self._options.pairs)

    def _learn(self, rows: VerifiedRows, tables: Sequence[Table], requests: Sequence[RequestView]) -> None:
        ends = np.searchsorted(rows.request, np.arange(len(tables) + 1)).tolist()
        for table, request, (start, end) in zip(tables, requests, itertools.pairwise(ends), strict=True):
            if start < end:
                own = slice(start, end)
                accepted = rows.accepted[own]
                shown = rows.tokens[own], rows.parents[own], accepted, rows.top_ids[own], rows.top_logprobs[own]
                before = _last_two(request.tokens, int(accepted.sum()))[0]
                table.compare(before, shown, int(request.tokens[-1]))
                table.learn(before, shown)

    def _forget_the_oldest(self) -> None:
        """Drop namespaces in which no request runs, the longest unused first, while there are too many."""
        surplus = len(self._tables) - self._options.max_namespaces
        if surplus > 0:
            used = {namespace for namespace, _ in self._running.values()}
            for namespace in [name for name in self._tables if name not in used][:surplus]:
                del self._tables[namespace]

    def _load(self, path: str) -> None:
        kept = table_file.read(path)
        for namespace, contents in kept.tables.items():
            table = self._tables[namespace] = self._new()
            table.put(contents)
        self._digest = kept.digest

    def _of(self, request_id: str) -> Table:
        known = self._running.get(request_id)
        if known is None:
            message = f"token_recycling: request {request_id!r} is not known; call start(request) before propose(batch)"
            raise SpecdecError(message)
        return known[1]


def _last_two(tokens: IntArray, without: int) -> tuple[int, int]:
    """Return the last two of some ids without the newest `without` ones; the first is -1 where there is none."""
    end = len(tokens) - without
    return int(tokens[end - 2]) if end > 1 else -1, int(tokens[end - 1])
