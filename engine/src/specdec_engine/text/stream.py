"""From ids to text, one id after the other: what was once shown is never taken back; knows no rule for ending."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.pieces import LEFT_OUT, ORDINARY, REPLACEMENT, pieces_of

HOLD_BACK = 4  # ids kept as context; three bytes of it are enough to know where characters begin


class TextStream:
    """The text of one sample as far as it is certain: a function of its ids alone, in whatever portions they come.

    It is what the tokenizer decodes from all ids wherever their bytes are UTF-8. Bytes that are not become U+FFFD as in
    Python's incremental decoder with errors="replace" (one for each longest beginning of a character, Unicode 3.9).

    taken  ids whose text is in it
    limit  the most ids whose text belongs to it, None for all: the id that ended a sample may be no part of its text
    """

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        """Without a tokenizer, or with `detokenize` off, the text stays empty."""
        self.taken = 0
        self.limit: int | None = None
        self._tokenizer: Any = tokenizer if params.detokenize else None
        self._params = params
        self._held = 0  # characters at the end that may yet become part of a stop text
        if params.stop_texts and not params.include_stop_str_in_output:
            self._held = max(map(len, params.stop_texts)) - 1
        self._text = ""
        self._tail = ""  # an unfinished character: it waits for its rest, or for the end
        self._window: list[int] = []  # the newest ids, of which the first ones are context
        self._shown = 0  # characters of the decoded window that are in `_text`
        self._pieces = None if self._tokenizer is None else pieces_of(tokenizer)
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")  # of pieces that are single bytes

    def __len__(self) -> int:
        """Return the number of certain characters."""
        return len(self._text)

    def push(self, token: int) -> None:
        """Take in one id."""
        self.taken += 1
        if self._pieces is None:
            return
        kind = self._pieces.kind(token, self._params.skip_special_tokens)
        if kind == LEFT_OUT:
            return
        if kind != ORDINARY:
            self._add_characters(self._bytes.decode(bytes([kind])))
            return
        if self._bytes.getstate()[0]:
            self._add_characters(self._bytes.decode(b"", final=True))
        self._add([token])

    def _add_characters(self, characters: str) -> None:
        """Add what single bytes came to, through ids, for the tokenizer may drop a space at the start of a text."""
        assert self._pieces is not None
        for character in characters:
            broken = character == REPLACEMENT
            self._add([self._pieces.byte_ids[byte] for byte in (b"?" if broken else character.encode())])
            if broken:  # among valid bytes a tokenizer would make every one of the run U+FFFD
                self._text = self._text[:-1] + REPLACEMENT

    def _add(self, ids: list[int]) -> None:
        self._window += ids
        decoded = self._decode(self._window)
        certain = len(decoded) - decoded.endswith(REPLACEMENT)  # the last may be a character's beginning
        if certain > self._shown:
            self._text += decoded[self._shown : certain]
            self._shown = certain
        self._tail = decoded[self._shown :]
        if len(self._window) >= 3 * HOLD_BACK:
            self._shorten()

    def _shorten(self) -> None:
        """Keep the newest ids as context, unless the tokenizer takes them for the start of a text and drops them."""
        assert self._pieces is not None
        start = len(self._window) - HOLD_BACK
        while start and self._pieces.continues(self._window[start]):
            start -= 1  # bytes of one character stay together
        decoded = self._decode(self._window[start:])
        if start and decoded:
            del self._window[:start]
            self._shown = len(decoded) - decoded.endswith(REPLACEMENT)

    def update(self, ids: list[int], *, finished: bool) -> str:
        """Take in what is new of a sample's ids and return the text to show."""
        new = ids[self.taken : self.limit]
        for token in new:
            self.push(token)
        if finished:
            return self._text + self._tail + REPLACEMENT * bool(self._bytes.getstate()[0])
        return self._text[: max(0, len(self._text) - self._held)]

    def cut(self, stops: Sequence[str], start: int, *, keep: bool) -> str | None:
        """End the text at the first stop text that ends behind character `start`; return it, None if there is none.

        With `keep` the text ends after the stop text, else before it. Of several that end at one place the first wins.
        """
        found = [(self._text.find(stop, max(0, start + 1 - len(stop))), stop) for stop in stops]
        hits = [(at, stop) for at, stop in found if at >= 0]
        if not hits:
            return None
        at, stop = min(hits, key=lambda hit: hit[0] + len(hit[1]))
        self._text, self._tail = self._text[: at + len(stop) if keep else at], ""
        self._bytes.reset()
        return stop

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids,
            skip_special_tokens=self._params.skip_special_tokens,
            spaces_between_special_tokens=self._params.spaces_between_special_tokens,
            clean_up_tokenization_spaces=False,  # it would take back spaces that were shown
        )
        return text
