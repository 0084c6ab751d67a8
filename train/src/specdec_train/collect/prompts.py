"""From questions to ids, by tokenizer and chat template where there is one; and turns that the target goes on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.errors import RequestError
from specdec_engine.text.chat import ChatOptions, render

Message = Mapping[str, str]
MARK: Final = "0f3a91c7"  # stands for what a user says while it is not known


@dataclass(frozen=True)
class OpenTurn:
    """Ids up to where a user begins to speak, or a document begins, and the ids that end what is said."""

    ids: tuple[int, ...]
    ends: frozenset[int]


class Prompter:
    """Makes prompts for one tokenizer."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], *, chat: bool = True) -> None:
        """Take the ids that end a text. With `chat` False, a chat template is ignored.

        Raises RequestError without a tokenizer.
        """
        if tokenizer is None:
            message = "the target has no tokenizer, and `specdec train collect` has to write and read texts"
            raise RequestError(message)
        self._tokenizer, self.end_ids = tokenizer, end_ids
        self.chats = chat and bool(getattr(tokenizer, "chat_template", None))

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt for a conversation; of a target that does not chat, for its last message as a text."""
        if self.chats:
            ids: list[int] = render(self._tokenizer, messages, ChatOptions())[0]["prompt_token_ids"]
            return ids
        return list(self._tokenizer(f"{messages[-1]['content']}\n")["input_ids"])

    def open_turn(self, messages: Sequence[Message], begin: str = "") -> OpenTurn:
        """Return what the target completes to a user's next turn that begins with a text, or to a document."""
        if not self.chats:
            first = self._first_ids()
            return OpenTurn((*first, *self._encode(begin)) or (0,), self.end_ids)
        said = [*messages, {"role": "user", "content": MARK}]
        text = render(self._tokenizer, said, ChatOptions())[0]["prompt"]
        before, mark, after = text.rpartition(MARK)
        if not mark:
            message = "the chat template does not write what a user says, so the target cannot go on with it"
            raise RequestError(message)
        ends = self.end_ids | frozenset(self._encode(after.lstrip())[:1])
        return OpenTurn(tuple(self._encode(before + begin)), ends)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special ones."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _first_ids(self) -> list[int]:
        """Return what a text begins with: the tokenizer's own, else an id that ends the text before it."""
        ids = list(self._tokenizer("")["input_ids"])
        if ids:
            return ids
        first = getattr(self._tokenizer, "bos_token_id", None)
        found = [first] if isinstance(first, int) else sorted(self.end_ids)[:1]
        return [token for token in found if token is not None]
