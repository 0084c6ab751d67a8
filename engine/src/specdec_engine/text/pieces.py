"""What single ids of a tokenizer are for a text: left out, one byte, or a piece that the tokenizer decodes."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

REPLACEMENT = "\ufffd"
LEFT_OUT = -1
ORDINARY = -2


class Pieces:
    """The kinds of a tokenizer's ids, found by asking it to decode each id once.

    byte_ids  the 256 ids whose pieces are `<0x00>` to `<0xFF>`; empty if the tokenizer does not decode them as bytes
    """

    def __init__(self, tokenizer: Any) -> None:
        """Look for the byte pieces; all else is asked for when an id is first seen."""
        self._of = ref(tokenizer)  # weak: what is known of tokenizers must not keep them
        self.byte_ids = self._find_bytes()
        self._values = {token: value for value, token in enumerate(self.byte_ids)}
        self._kinds: dict[tuple[int, bool], int] = {}

    def kind(self, token: int, skip_special: bool) -> int:
        """Return the value of a byte piece, LEFT_OUT for an id that is no part of the text, else ORDINARY."""
        known = self._kinds.get((token, skip_special))
        if known is None:
            known = self._kinds[token, skip_special] = self._find_kind(token, skip_special)
        return known

    def continues(self, token: int) -> bool:
        """Whether the id is a single byte inside a character."""
        return self._values.get(token, 0) & 0xC0 == 0x80

    def _find_kind(self, token: int, skip_special: bool) -> int:
        if token in self._values:
            return self._values[token]
        if self._decode(token, skip_special):
            return ORDINARY
        # Pieces such as a lone space may vanish at the start of a text: only what is special or unknown is left out.
        left_out = bool(self._decode(token, False)) or self._tokenizer().convert_ids_to_tokens(token) is None
        return LEFT_OUT if left_out else ORDINARY

    def _find_bytes(self) -> list[int]:
        names = [f"<0x{value:02X}>" for value in range(256)]
        ids = self._tokenizer().convert_tokens_to_ids(names)
        if None in ids or len(set(ids)) < 256 or self._tokenizer().convert_ids_to_tokens(ids) != names:
            return []
        return list(ids) if self._decode(ids[0x80], False) == REPLACEMENT else []

    def _tokenizer(self) -> Any:
        return self._of()

    def _decode(self, token: int, skip_special: bool) -> str:
        text: str = self._tokenizer().decode(
            [token], skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return text


_known: WeakKeyDictionary[Any, tuple[int, Pieces]] = WeakKeyDictionary()


def pieces_of(tokenizer: Any) -> Pieces:
    """Return what is known of a tokenizer, anew once it has more ids."""
    size, pieces = _known.get(tokenizer, (-1, None))
    if pieces is None or size != len(tokenizer):
        pieces = Pieces(tokenizer)
        _known[tokenizer] = (len(tokenizer), pieces)
    return pieces
