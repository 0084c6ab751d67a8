"""Where one sample stands in its grammar, moved by ids and moved back; knows neither forms nor logits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_core.draft import IntArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

_NOTHING: Final = np.empty(0, np.int32)

logger = logging.getLogger("specdec_engine")


class GrammarState:
    """A matcher and the ids it was fed. Ids are only fed to it where it takes them.

    Before `start` (ids, one after the other) has been seen everything is legal. Once the grammar is complete, the ids
    in `ends` are legal, and after one of them nothing is fed any more. Where no id at all can go on with the grammar,
    the ends are legal as well, so that the text ends there, unfinished; that is warned of.
    """

    def __init__(
        self, prototype: LLMatcher, eos: Collection[int], words: int, ends: Collection[int], start: tuple[int, ...]
    ) -> None:
        """Copy a matcher at its beginning, for which `eos` are the ends; masks have `words` words of 32 ids."""
        self._prototype = prototype
        self._matcher = prototype.deep_copy()
        self._start = start
        self._ends = ends
        self._end_bits = _bits(ends, words)
        self._inner_bits = ~(self._end_bits | _bits(eos, words))
        self._ids: list[int] = []
        self._began = None if start else 0  # how many ids stand before the grammar's first
        self._ended = False
        self._lost = False

    @property
    def alive(self) -> bool:
        """Whether the grammar is complete or some id goes on with it."""
        return self._matcher.is_accepting() or bool((self.masks([_NOTHING])[0] & self._inner_bits).any())

    def accept(self, token: int) -> bool:
        """Move on by one id, or return False and stay if it is illegal here."""
        if self._ended:
            return False
        if self._began is None:
            self._ids.append(token)
            if tuple(self._ids[-len(self._start) :]) == self._start:
                self._began = len(self._ids)
            return True
        if token in self._ends:
            if not self._lost and not self._matcher.is_accepting() and self.alive:
                return False
            self._ended = True
        elif self._lost or self._matcher.try_consume_tokens([token]) != 1:
            return False
        self._ids.append(token)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted ids."""
        fed = 0
        for _ in range(count):
            self._ids.pop()
            if self._ended:
                self._ended = False
            elif self._began is not None and len(self._ids) >= self._began:
                fed += 1
            else:
                self._began = None
        if self._matcher.is_error() and not self._lost:  # of a dead end; a matcher in error stays there
            self._matcher = self._prototype.deep_copy()
            self._matcher.consume_tokens(self._ids[self._began :] if self._began is not None else [])
        elif fed:
            self._matcher.rollback(fed)

    def commit(self, ids: Iterable[int]) -> None:
        """Move on by ids that were emitted."""
        for token in ids:
            legal = self.accept(token)
            if not self._lost and (not legal or (self._ended and not self._matcher.is_accepting())):
                self._lose(legal, token)
                return

    def legal(self, ids: IntArray) -> int:
        """Return how many of `ids`, which would follow the committed ones, are legal, counted from the first."""
        count = 0
        for token in ids.tolist():
            if not self.accept(token):
                break
            count += 1
        self.rollback(count)
        return count

    def masks(self, paths: Sequence[IntArray]) -> IntArray:
        """Return the mask after each path of ids that follow the committed ones, [paths, words]; bit i: id i is legal.

        A path that is not legal itself is never taken; its mask says nothing and forbids nothing.
        """
        masks: IntArray = np.full((len(paths), len(self._end_bits)), -1, np.int32)
        at: list[int] = []
        for path, mask in zip(paths, masks, strict=True):
            ids = path.tolist()
            common = _common(at, ids)
            self.rollback(len(at) - common)
            at = ids[:common]
            for token in ids[common:]:
                if not self.accept(token):
                    break
                at.append(token)
            if len(at) == len(ids):
                self._fill(mask)
        self.rollback(len(at))
        return masks

    def _fill(self, mask: IntArray) -> None:
        """Write the mask here into an array [words]."""
        if self._began is None:
            mask.fill(-1)
        elif self._ended or self._lost:
            mask[:] = self._end_bits
        else:
            from llguidance.numpy import fill_next_token_bitmask

            fill_next_token_bitmask(self._matcher, mask[np.newaxis])
            mask &= self._inner_bits
            if self._matcher.is_accepting() or not mask.any():
                mask |= self._end_bits

    def _lose(self, legal: bool, token: int) -> None:
        """Give the grammar up: the text ends where it can, and somebody should know."""
        self._lost = True
        logger.warning(
            "structured_outputs: after %d ids %s; the text ends unfinished",
            len(self._ids),
            "no id could go on with the form" if legal else f"id {token} was emitted, which the form forbids",
        )


def _bits(ids: Collection[int], words: int) -> IntArray:
    """Return the mask in which some ids are 1."""
    flags = np.zeros(32 * words, np.bool_)
    flags[list(ids)] = True
    return np.packbits(flags, bitorder="little").view(np.int32)


def _common(a: list[int], b: list[int]) -> int:
    """Return the length of the beginning that two lists share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
