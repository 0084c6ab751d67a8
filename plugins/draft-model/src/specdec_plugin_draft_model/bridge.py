"""Spells a text in the ids of another tokenizer and back, a bounded end of it at a time; it knows ids, not models.

The drafter's ids of a text are frozen up to a mark and spelled anew behind it. The mark moves forward to places from
which on the text is spelled the same whether or not what lies before is there, so that the cost of a step does not
grow with the text. Ids that end in the middle of a character are pending: they are no part of the text until the
character is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from specdec_core.draft import IntArray

BROKEN: Final = "�"  # what tokenizers decode incomplete UTF-8 to
LEAD: Final = 6  # ids decoded before a place, so that what depends on its neighbours comes out as in the whole text
MOST_PENDING: Final = 3  # ids that one incomplete character can have: bytes of UTF-8 but the last
TAIL: Final = 24  # ids of the target that are spelled anew at every step, at least
LONG: Final = 64  # ids behind the mark at which a new one is looked for


def _opening(tokenizer: Any) -> list[int]:
    """Return the ids that a tokenizer puts before every text."""
    ids = list(tokenizer.encode(""))
    while ids and ids[-1] in (tokenizer.eos_token_id, getattr(tokenizer, "sep_token_id", None)):
        ids.pop()
    return ids


@dataclass(slots=True)
class Spelled:
    """One request's text in the drafter's ids: those before the mark, and the target id at which the mark stands.

    trimmed  the text behind the mark begins with a space that the drafter's tokenizer adds by itself
    """

    frozen: list[int] = field(default_factory=list)
    mark: int = 0
    trimmed: bool = False


class Bridge:
    """Two tokenizers of transformers; V and V_d are the ids that the models have."""

    def __init__(self, target: Any, draft: Any, vocab_size: int, draft_size: int) -> None:
        """Take the tokenizers."""
        self._target, self._draft = target, draft
        self._vocab_size, self._draft_size = vocab_size, draft_size
        self.draft_ids = min(draft_size, 1 + max(draft.get_vocab().values()))  # rows beyond are padding
        self._opening, self._theirs = _opening(draft), _opening(target)
        self._specials = frozenset(draft.all_special_ids)

    def begin(self) -> Spelled:
        """Return the spelling of a text that nothing is known of: the drafter's opening ids."""
        return Spelled(list(self._opening))

    def is_special(self, token: int) -> bool:
        """Return whether a draft id stands for no text."""
        return token in self._specials

    def read(self, spelled: Spelled, tokens: IntArray) -> list[int]:
        """Return the drafter's ids of the text of all target ids, and move the mark if it is far behind.

        The ids begin with those that were frozen at the last call.
        """
        tokens = self._unopened(tokens)
        text, _ = self._text(tokens, spelled.mark)
        behind = self._spell(text[1:] if spelled.trimmed and text.startswith(" ") else text)
        ids = spelled.frozen + behind
        if len(tokens) - spelled.mark > LONG:
            self._move(spelled, tokens, text, behind)
        return ids

    def answer(self, tokens: IntArray, context: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Return the target ids that spell what draft ids say behind a text, as far as the two agree where it ends.

        tokens   all ids of the target
        context  the drafter's ids of the text, the last few are enough
        drafted  what it drafted behind them, no special ids
        """
        said = self._say(context, drafted)
        if not said:
            return []
        tokens = self._unopened(tokens)
        start = self._boundary(tokens, max(0, len(tokens) - TAIL))
        text, pending = self._text(tokens, start)
        before, whole = self._respell(text), self._respell(text + said)
        at = len(before)
        if whole[:at] != before or whole[at : at + pending] != tokens[len(tokens) - pending :].tolist():
            return []  # the target would have spelled its own end in another way, had it meant this
        ids = whole[at + pending :]
        return ids[: next((i for i, token in enumerate(ids) if token >= self._vocab_size), len(ids))]

    def _unopened(self, tokens: IntArray) -> IntArray:
        """Return target ids without those that its tokenizer puts before every text."""
        count = len(self._theirs)
        return tokens[count:] if tokens[:count].tolist() == self._theirs else tokens

    def _move(self, spelled: Spelled, tokens: IntArray, text: str, behind: list[int]) -> None:
        """Move the mark to about `TAIL` ids before the end, or as near before that as it can be."""
        for place in range(len(tokens) - TAIL, spelled.mark, -1):
            if place != self._boundary(tokens, place):
                continue
            rest, _ = self._text(tokens, place)
            if not rest or not text.endswith(rest):
                continue
            for trimmed in (False, True):
                if trimmed and not rest.startswith(" "):
                    continue
                ids = self._spell(rest[1:] if trimmed else rest)
                if 0 < len(ids) < len(behind) and behind[-len(ids) :] == ids:
                    spelled.frozen = spelled.frozen + behind[: -len(ids)]
                    spelled.mark, spelled.trimmed = place, trimmed
                    return

    def _text(self, tokens: IntArray, start: int) -> tuple[str, int]:
        """Return what target ids from `start` on add to the text before, and how many at their end are pending."""
        lead = max(0, start - LEAD)
        before = self._read(tokens[lead:start])
        for pending in range(min(MOST_PENDING, len(tokens) - start) + 1):
            whole = self._read(tokens[lead : len(tokens) - pending])
            if not whole.endswith(BROKEN):
                break
        else:  # no character comes of these bytes any more
            pending, whole = 0, self._read(tokens[lead:])
        if whole.startswith(before):
            return whole[len(before) :], pending
        return self._read(tokens[start : len(tokens) - pending]), pending

    def _boundary(self, tokens: IntArray, place: int) -> int:
        """Return the last place up to `place` at which no character is broken."""
        for earlier in range(place, max(0, place - MOST_PENDING) - 1, -1):
            if not self._read(tokens[max(0, earlier - LEAD) : earlier]).endswith(BROKEN):
                return earlier
        return place

    def _read(self, tokens: IntArray) -> str:
        return str(self._decode(self._target, np.asarray(tokens).tolist()))

    def _say(self, context: Sequence[int], drafted: Sequence[int]) -> str:
        """Return the text that draft ids add, up to its last whole character."""
        lead = list(context[-LEAD:])
        before = self._decode(self._draft, lead)
        for end in range(len(drafted), max(0, len(drafted) - MOST_PENDING) - 1, -1):
            whole = self._decode(self._draft, [*lead, *drafted[:end]])
            if whole.startswith(before) and not whole.endswith(BROKEN):
                return whole[len(before) :]
        return ""

    @staticmethod
    def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)) if ids else ""

    def _spell(self, text: str) -> list[int]:
        """Return the drafter's ids of a text, without ids that its model has no rows for."""
        ids = self._draft.encode(text, add_special_tokens=False) if text else []
        return [token for token in ids if token < self._draft_size]

    def _respell(self, text: str) -> list[int]:
        return list(self._target.encode(text, add_special_tokens=False)) if text else []
