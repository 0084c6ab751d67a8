"""What a tokenizer makes of a prompt's text: which texts it cannot take, and one start token where two would stand."""

from __future__ import annotations

import re
from typing import Any

from specdec_core.errors import RequestError

_SURROGATE = re.compile("[\ud800-\udfff]")


def check_text(text: str, name: str) -> None:
    """Raise RequestError for a text with half of a surrogate pair in it, which is no character in any encoding."""
    found = _SURROGATE.search(text)
    if found is None:
        return
    code = ord(found[0])
    came = "; it came from bytes that are not UTF-8" if 0xDC80 <= code <= 0xDCFF else ""
    message = (
        f"{name} has a lone surrogate, \\u{code:04x}, at index {found.start()}, which is no character{came}; decode "
        "the text with its own encoding"
    )
    raise RequestError(message)


def ids_of_text(text: str, tokenizer: Any) -> list[int]:
    """Return the ids of a prompt, with the tokenizer's special tokens; a start token in the text counts as its own.

    A text that begins with the start token, as one does that a chat template was applied to, would get a second one
    from tokenizers that add theirs.
    """
    ids: list[int] = tokenizer(text)["input_ids"]
    start, token = getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "bos_token", None)
    if start is None or not token or ids[:2] != [start, start] or not text.startswith(str(token)):
        return ids
    bare: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    own = next((i for i, token_id in enumerate(bare) if token_id != start), len(bare))
    return ids[1:] if own and ids[: own + 1] == [start] * (own + 1) else ids
