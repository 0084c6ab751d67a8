"""The kinds of tasks, how often each comes, and how a starter of each is made; knows no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from specdec_core.errors import RequestError
from specdec_train.collect.starters import arithmetic, code, facts, passages, questions, translation

OPEN: Final = "open"  # the target writes the question
FOLLOW_UP: Final = "follow_up"  # a further turn of a conversation
GIVEN: Final = "given"  # the user's own prompt
COPYING: Final = "copy"  # answers may be those of before

SUMMARIZE: Final = (
    "Summarize: {text}",
    "Summarize the following text:\n\n{text}",
    "{text}\n\nSummarize the text above in three sentences.",
    "Write a short summary of this article.\n\n{text}",
    "{text}\n\nTL;DR:",
    "Summarize the article below in bullet points:\n\n{text}",
    "What are the main points of this text?\n\n{text}",
    "Give a title and a one-sentence summary for the following text.\n\n{text}",
    "Here is an article: {text}\n\nPlease write a summary of it in one paragraph.",
)
WITH_PASSAGES: Final = (
    "Answer the question from the text.\n\nText: {text}\n\nQuestion: {question}",
    "{text}\n\nQuestion: {question}\nAnswer:",
    "Read this and answer: {question}\n\n{text}",
    "Use the following passages to answer the question.\n\n{text}\n\nQuestion: {question}\n\nAnswer in full sentences.",
    "Context:\n{text}\n\n{question}",
    "You are given some documents.\n\n{text}\n\nBased on the documents, {question}",
    "Documents:\n\n{text}\n\nAnswer the following question in a complete sentence, and say which document you used: {question}",
)
ASKED_OF_ANY: Final = (
    "What is this text about?",
    "What does the text say at its beginning?",
    "Which names and numbers are mentioned?",
    "What is the most important point?",
    "Who or what is described here?",
    "What follows from this?",
    "Which terms are explained, and how?",
)
COPY: Final = (
    "Repeat the following text exactly:\n\n{text}",
    "Copy this text and correct the spelling mistakes in it:\n\n{text}",
    "Write this text again, but put every sentence on a line of its own:\n\n{text}",
    "Rewrite the following paragraph in simpler words. Keep all facts.\n\n{text}",
    "Extract all names, places and dates from this text as a list:\n\n{text}",
    "Rewrite this text in the present tense:\n\n{text}",
    "Replace every name in this text by {name} and write all of it again:\n\n{text}",
    "Paraphrase this:\n\n{text}",
    "Turn this text into a table of facts:\n\n{text}",
    "Which sentences of this text have numbers in them? Quote them.\n\n{text}",
)


@dataclass(frozen=True)
class Turn:
    """A question with the answer that the target gave."""

    question: str
    answer: str
    task: str


@dataclass
class Pool:
    """Questions and answers of earlier shards, which later starters take up; of the last ones only."""

    turns: list[Turn] = field(default_factory=list)
    most: int = 2000

    def add(self, turns: Sequence[Turn]) -> None:
        """Add those of a shard."""
        self.turns = [*self.turns, *turns][-self.most :]

    def long(self, rng: Random, words: int) -> str | None:
        """Return an answer of at least that many words, None if there is none."""
        found = [turn.answer for turn in self.turns if len(turn.answer.split()) >= words and turn.task != COPYING]
        return rng.choice(found) if found else None


def text_of(rng: Random, pool: Pool, least: int, most: int) -> str:
    """Return prose of about `least` to `most` words: written by the target, made up, or of the library."""
    words = round(least * (most / least) ** rng.random())
    parts: list[str] = []
    kind = rng.random()
    while sum(len(part.split()) for part in parts) < words:
        own = pool.long(rng, 60) if kind < 0.45 else None
        if own is not None:
            parts.append(own)
        elif kind < 0.7:
            parts.append(facts.passage(rng)[0])
        else:
            parts.append(passages.passage(rng, words))
            break
    return passages.shortened("\n\n".join(parts), words)


def summary(rng: Random, pool: Pool) -> str:
    """Return a long text to summarize."""
    return rng.choice(SUMMARIZE).format(text=text_of(rng, pool, 120, 900))


def with_passages(rng: Random, pool: Pool) -> str:
    """Return passages, numbered where there are several, and a question about one of them."""
    count = rng.choice((1, 1, 2, 3, 4, 5))
    made = [facts.passage(rng) for _ in range(count)]
    _, asked = rng.choice(made)
    question = rng.choice(asked if rng.random() < 0.8 else ASKED_OF_ANY)
    texts = [one for one, _ in made]
    for _ in range(rng.choice((0, 0, 1, 2)) if count > 1 else 0):
        texts.insert(rng.randrange(len(texts) + 1), text_of(rng, pool, 60, 160))
    if len(texts) > 1:
        mark = rng.choice(("[{i}] {one}", "Document {i}: {one}", "{i}. {one}", "{one}"))
        texts = [mark.format(i=i, one=one) for i, one in enumerate(texts, start=1)]
    if rng.random() < 0.25:
        texts, question = [text_of(rng, pool, 150, 700)], rng.choice(ASKED_OF_ANY)
    return rng.choice(WITH_PASSAGES).format(text="\n\n".join(texts), question=question)


def copying(rng: Random, pool: Pool) -> str:
    """Return a text to write again with a change."""
    text = facts.passage(rng)[0] if rng.random() < 0.5 else text_of(rng, pool, 40, 110)
    return rng.choice(COPY).format(text=text, name=rng.choice(("Alex", "Maria", "X")))


MAKERS: Final[Mapping[str, Callable[[Random, Pool], str]]] = {
    "question": lambda rng, pool: questions.fact(rng),
    "topic": lambda rng, pool: questions.topic(rng),
    "writing": lambda rng, pool: questions.writing(rng),
    "math": lambda rng, pool: arithmetic.problem(rng),
    "code": lambda rng, pool: code.writing(rng) if rng.random() < 0.7 else code.reading(rng),
    "edit": lambda rng, pool: code.editing(rng),
    "summary": summary,
    "passages": with_passages,
    COPYING: copying,
    "translation": lambda rng, pool: translation.request(rng),
}
# Of a hundred requests; long prompts have several times the ids of the others.
SHARES: Final[Mapping[str, float]] = {
    OPEN: 26,
    FOLLOW_UP: 10,
    "question": 10,
    "topic": 8,
    "writing": 8,
    "math": 8,
    "code": 5,
    "edit": 3,
    "summary": 6,
    "passages": 6,
    COPYING: 3,
    "translation": 7,
}
TASKS: Final = (*SHARES, GIVEN)


def read_shares(given: Sequence[str]) -> dict[str, float]:
    """Return the shares of all tasks, with those given as TASK=WEIGHT in place of the usual ones.

    Raises RequestError for another task, and for a weight that is no number of at least 0.
    """
    shares = dict(SHARES)
    for text in given:
        name, _, number = text.partition("=")
        if name not in shares:
            message = f"--share {text!r}: there is no task {name!r}; tasks are {', '.join(shares)}"
            raise RequestError(message)
        try:
            shares[name] = float(number)
        except ValueError:
            shares[name] = -1.0
        if not 0 <= shares[name] < float("inf"):
            message = f"--share {text!r}: expected TASK=WEIGHT with a number of at least 0, such as math=12"
            raise RequestError(message)
    if not sum(shares.values()):
        message = "--share: all weights are 0; at least one task is needed"
        raise RequestError(message)
    return shares


def draw(rng: Random, shares: Mapping[str, float], count: int) -> list[str]:
    """Return tasks of so many requests, each with its share as nearly as whole numbers allow, in a random order."""
    total = sum(shares.values())
    exact = {name: count * weight / total for name, weight in shares.items()}
    found = {name: int(number) for name, number in exact.items()}
    rest = [name for name in shares if shares[name]]
    weights = [exact[name] - found[name] + 1e-9 for name in rest]
    for name in rng.choices(rest, weights, k=count - sum(found.values())):
        found[name] += 1
    tasks = [name for name, number in found.items() for _ in range(number)]
    rng.shuffle(tasks)
    return tasks
