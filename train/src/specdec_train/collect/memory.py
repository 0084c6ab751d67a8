"""What a shard depends on besides its number: prompts and answers of the shards before it, and texts to take up."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from specdec_train.collect.repetition import Seen
from specdec_train.collect.settings import LEAST_ANSWER
from specdec_train.collect.starters.tasks import COPYING, OPEN, Pool, Turn

QUESTION_RUN: Final = 3  # words that make a run when questions are compared
ANSWER_RUN: Final = 8  # ids, when answers are


@dataclass(frozen=True)
class Kept:
    """A request that is in the data: its task, the ids of its prompt and of its answer, and its texts."""

    task: str
    prompt: Sequence[int]
    answer: Sequence[int]
    texts: dict[str, Any]


@dataclass
class Memory:
    """Everything that was kept so far; the same after a resumption as in a process that was never stopped."""

    prompts: set[tuple[int, ...]] = field(default_factory=set)
    questions: Seen = field(default_factory=lambda: Seen(QUESTION_RUN, 0.7))
    answers: Seen = field(default_factory=lambda: Seen(ANSWER_RUN, 0.5))
    pool: Pool = field(default_factory=Pool)

    def learn(self, kept: Sequence[Kept], end_ids: Set[int]) -> None:
        """Take in the requests of a shard."""
        for each in kept:
            self.prompts.add(tuple(each.prompt))
            if each.task == OPEN:
                self.questions.learn(words(each.texts["question"]))
            if is_compared(each.task, each.answer):
                self.answers.learn(content(each.answer, end_ids))
        self.pool.add([Turn(each.texts["question"], each.texts["answer"], each.task) for each in kept])

    def shard(self) -> Memory:
        """Return a memory for making one shard, which knows what this one knows and leaves it as it is."""
        return Memory(set(self.prompts), self.questions.above(), self.answers.above(), self.pool)


def is_compared(task: str, answer: Sequence[int]) -> bool:
    """Return whether answers of a task may not repeat each other; short ones and copies may."""
    return len(answer) >= 2 * LEAST_ANSWER and task != COPYING


def content(answer: Sequence[int], end_ids: Set[int]) -> Sequence[int]:
    """Return an answer without the id that ends it."""
    return answer[:-1] if answer and answer[-1] in end_ids else answer


def words(question: str) -> list[str]:
    """Return the words by which a question is compared with others."""
    return question.casefold().split()
