"""The proposer `lookahead`: for each request a window and a pool, kept up to date with what the target answered."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.draft import Draft
from specdec_core.errors import SpecdecError
from specdec_plugin_lookahead.pool import Pool
from specdec_plugin_lookahead.rows import Answers, Tree
from specdec_plugin_lookahead.window import Window

if TYPE_CHECKING:
    from specdec_core.context import MethodContext
    from specdec_core.draft import BatchView, FinishReason, RequestView, VerifiedRows
    from specdec_plugin_lookahead.options import LookaheadOptions


@dataclass(slots=True, eq=False)
class _Known:
    """A request: its window, its pool, and how many of its ids the pool has read."""

    window: Window
    pool: Pool
    read: int = 0


def make(ctx: MethodContext[LookaheadOptions]) -> LookaheadProposer:
    """Build the proposer."""
    return LookaheadProposer(ctx.options)


class LookaheadProposer:
    """Lookahead decoding (arXiv 2402.02057): one tree a step of the window's rows and of n-grams that may be right.

    All of them are verified like any draft: what is accepted of the window is right, too. Nothing is shared between
    requests. A step costs O(nodes).
    """

    def __init__(self, options: LookaheadOptions) -> None:
        """Keep the options."""
        self._options = options
        self._known: dict[str, _Known] = {}

    def start(self, request: RequestView) -> None:
        """Begin a window with ids of the prompt, spread over it; a request that comes back begins anew."""
        options = self._options
        width, length = options.window_size, options.ngram_size
        ids, count = request.tokens[: request.prompt_len], width + length - 3
        trunk = [int(ids[i * len(ids) // count]) for i in range(count)]
        self._known[request.id] = _Known(Window(width, length, trunk), Pool(length, options.guess_set_size))

    def propose(self, batch: BatchView) -> Draft:
        """Learn from the last step, and return one tree a row: the window and n-grams."""
        answers = _answers(batch.verified, len(batch))
        rows = list[Tree]()
        for i, (request, limit) in enumerate(zip(batch.requests, batch.max_draft.tolist(), strict=True)):
            known = self._of(request.id)
            own = answers[i]
            if own is not None:
                newest, answer = own
                for first, rest in known.window.advance(newest, answer):
                    known.pool.add(first, rest)
            tree = Tree(limit)
            if limit:
                self._grow(tree, known, request, limit)
            rows.append(tree)
        tokens = np.array([token for tree in rows for token in tree.tokens], np.int32)
        parents = np.array([parent for tree in rows for parent in tree.parents], np.int32)
        return Draft(lengths=[len(tree.tokens) for tree in rows], tokens=tokens, parents=parents)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Forget a request."""
        self._known.pop(request.id, None)

    def close(self) -> None:
        """Forget all requests."""
        self._known.clear()

    def _grow(self, tree: Tree, known: _Known, request: RequestView, limit: int) -> None:
        tokens = request.tokens
        if self._options.prompt_as_reference:
            known.pool.read(tokens[known.read :].tolist())
            known.read = len(tokens)
        guesses = known.pool.rests(int(tokens[-1]))[: self._options.guess_set_size]
        columns = known.window.columns()
        # A part of the window finds nothing, so n-grams come first where it has no room.
        whole = limit >= self._options.window_nodes
        tree.add_all((*columns, *guesses) if whole else (*guesses, *columns))

    def _of(self, request_id: str) -> _Known:
        known = self._known.get(request_id)
        if known is None:
            message = f"lookahead: request {request_id!r} is not known; call start(request) before propose(batch)"
            raise SpecdecError(message)
        return known


def _answers(rows: VerifiedRows | None, count: int) -> list[tuple[int, Answers] | None]:
    """Return of each batch row the newest id of the last step, and the target's answers behind it; None for none.

    A step without drafts tells nothing of the window, which then stays where it is.
    """
    if rows is None:
        return [None] * count
    ends = np.searchsorted(rows.request, np.arange(count + 1)).tolist()
    tokens, parents, best = rows.tokens.tolist(), rows.parents.tolist(), rows.top_ids[:, 0].tolist()
    found: list[tuple[int, Answers] | None] = []
    for start, end in itertools.pairwise(ends):
        own = slice(start, end)
        told = end - start > 1
        found.append((tokens[start], Answers(tokens[own], parents[own], best[own])) if told else None)
    return found
