"""The keys of `lookahead` in a speculative configuration; knows no window."""

from __future__ import annotations

from pydantic import Field

from specdec_core.config.speculative import MethodOptions

WINDOW, NGRAM, GUESSES = 4, 3, 4


class LookaheadOptions(MethodOptions):
    """How far the target looks ahead, and what is drafted of what it found."""

    window_size: int = Field(WINDOW, ge=1, description="Later places that the target guesses at in every step.")
    ngram_size: int = Field(NGRAM, ge=3, description="Ids of an n-gram: the newest id, and those drafted behind it.")
    guess_set_size: int = Field(
        GUESSES, ge=0, description="N-grams that are kept for a first id, and drafted when it is the newest one."
    )
    prompt_as_reference: bool = Field(
        True, description="Whether the n-grams of the prompt and of the output so far are kept, too."
    )

    @property
    def nodes(self) -> int:
        """The most nodes of a step's tree."""
        n, w = self.ngram_size, self.window_size
        return (w - 1) + (n - 2) * w + self.guess_set_size * (n - 1)

    @property
    def window_nodes(self) -> int:
        """Of these, the nodes of the window."""
        return (self.window_size - 1) + (self.ngram_size - 2) * self.window_size
