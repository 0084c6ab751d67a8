"""From ids to text, a few ids at a time: what was once shown is never taken back."""

from __future__ import annotations

from typing import Any

from specdec_engine.request import Request

HOLD_BACK = 6  # ids kept as context, so that spaces and joined characters decode as they do in the whole text


class TextStream:
    """The text of one request as far as it is certain; decodes new ids with a few old ones as context."""

    def __init__(self, tokenizer: Any, request: Request) -> None:
        """Without a tokenizer, or with `detokenize` off, the text stays empty."""
        self._tokenizer = tokenizer if request.sampling_params.detokenize else None
        self._request = request
        self._text = ""
        self._context = 0  # first id of the decoded window
        self._shown = 0  # ids whose text is in `_text`

    def update(self) -> str:
        """Take in the request's new ids and return the text so far; an unfinished character waits for its rest."""
        if self._tokenizer is None:
            return ""
        ids = self._request.output_ids
        if self._request.finish_reason == "stop":
            ids = ids[:-1]  # the id that ended it is no part of the text, be it a stop id or an end of text
        before = self._decode(self._tokenizer, ids[self._context : self._shown])
        after = self._decode(self._tokenizer, ids[self._context :])
        complete = self._request.finished or not after.endswith("\ufffd")
        if len(after) > len(before) and complete:
            self._text += after[len(before) :]
            self._shown = len(ids)
            self._context = max(0, self._shown - HOLD_BACK)
        return self._text

    def _decode(self, tokenizer: Any, ids: list[int]) -> str:
        params = self._request.sampling_params
        text: str = tokenizer.decode(
            ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            clean_up_tokenization_spaces=False,  # it would take back spaces that were shown
        )
        return text
