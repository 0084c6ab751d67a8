"""From ids to text, one id after the other: what was once shown is never taken back; knows no rule for ending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_engine.sampling_params import SamplingParams

HOLD_BACK = 6  # ids kept as context, so that spaces and joined characters decode as they do in the whole text
LONGEST_WAIT = 32  # ids; no character has so many bytes, so what does not end by then is no text
REPLACEMENT = "\ufffd"


class TextStream:
    """The text of one sample as far as it is certain.

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
        self._bound = 0  # a place in the window where a character ends
        self._shown = 0  # characters of the decoded window that are in `_text`
        self._waiting = 0  # ids since a character ended

    def __len__(self) -> int:
        """Return the number of certain characters."""
        return len(self._text)

    def push(self, token: int) -> None:
        """Take in one id."""
        self.taken += 1
        if self._tokenizer is None:
            return
        self._window.append(token)
        decoded = self._decode(self._window)
        self._waiting = self._waiting + 1 if decoded.endswith(REPLACEMENT) else 0
        given_up = self._waiting > LONGEST_WAIT
        certain = decoded if given_up else decoded.rstrip(REPLACEMENT)
        if len(certain) > self._shown:
            self._text += certain[self._shown :]
            self._shown = len(certain)
        self._tail = decoded[self._shown :]
        if given_up or self._waiting == 0:
            self._shorten()

    def _shorten(self) -> None:
        """Drop context at a place where a character ends, once enough ids came after it."""
        self._waiting = 0
        if len(self._window) - self._bound >= HOLD_BACK:
            del self._window[: self._bound]
            self._bound = len(self._window)
            self._shown = len(self._decode(self._window))

    def update(self, ids: list[int], *, finished: bool) -> str:
        """Take in what is new of a sample's ids and return the text to show."""
        new = ids[self.taken : self.limit]
        if finished and self.taken == 0 and self._tokenizer is not None:
            self.taken, self._text = len(new), self._decode(new)
        else:
            for token in new:
                self.push(token)
        if finished:
            return self._text + self._tail
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
        return stop

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids,
            skip_special_tokens=self._params.skip_special_tokens,
            spaces_between_special_tokens=self._params.spaces_between_special_tokens,
            clean_up_tokenization_spaces=False,  # it would take back spaces that were shown
        )
        return text
