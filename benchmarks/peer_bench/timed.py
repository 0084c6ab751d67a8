"""How a call of a library is timed: all of it, and the part until every prompt has its first id."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter


@dataclass
class Timed:
    """What an arm did with prompts that were submitted together.

    answers        ids of each answer
    seconds        from submission to the last id
    first_seconds  of that, until every prompt had its first id
    first_tokens   ids that all answers had by then
    """

    answers: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    first_seconds: float = 0.0
    first_tokens: int = 0


class Clock:
    """Times one call; `have` is told after each step how many ids each answer has."""

    def __init__(self) -> None:
        """Start."""
        self._began = perf_counter()
        self.timed = Timed()

    def have(self, counts: list[int]) -> None:
        """Note the moment when every answer has begun."""
        if not self.timed.first_tokens and all(counts):
            self.timed.first_seconds = perf_counter() - self._began
            self.timed.first_tokens = sum(counts)

    def stop(self, answers: list[list[int]]) -> Timed:
        """Return the times with the answers."""
        self.timed.seconds = perf_counter() - self._began
        self.timed.answers = answers
        return self.timed
