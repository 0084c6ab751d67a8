"""What a shard consists of: which questions, in which order, drawn from seed and number of the shard alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from specdec_train.collect.decode import Answer, Job
from specdec_train.collect.prompts import Message, Prompter
from specdec_train.collect.settings import BEYOND, QUESTION_IDS, Settings
from specdec_train.collect.starters import questions
from specdec_train.collect.starters.tasks import FOLLOW_UP, GIVEN, MAKERS, OPEN, Pool, draw

BEGINNINGS: Final = """\
What How Why Write Can Explain Describe Create Give Is Imagine Suppose Find Tell Name List Which When Who Please I
Design Rewrite Compare Identify Develop Generate Analyze Provide In Do Are If Suggest Discuss Make My You The Calculate
Help""".split()
LONGEST_QUESTION: Final = 1200  # characters of a question that the target wrote
DOCUMENT_WORDS: Final = 24  # of the beginning of a document that the target goes on with
LONGEST_BEFORE: Final = 2500  # characters of a question and an answer that a further turn follows


@dataclass(frozen=True)
class Starter:
    """A request before it is answered: with its question, or with the turn in which the target writes one.

    before    what was said before
    question  None while the target has not written it
    begin     the text that its question begins with
    """

    task: str
    question: str | None
    before: tuple[Message, ...] = ()
    begin: str = ""

    @property
    def messages(self) -> list[Message]:
        """The conversation up to the question."""
        return [*self.before, {"role": "user", "content": self.question or ""}]


def starters(settings: Settings, number: int, pool: Pool, *, chats: bool) -> list[Starter]:
    """Return the starters of a shard; fewer, or none, where the user's prompts are used up."""
    count = settings.shard_requests
    if settings.prompts is not None:
        return [Starter(GIVEN, text) for text in settings.prompts[number * count : (number + 1) * count]]
    rng = Random(f"{settings.seed}:{number}")
    return [_starter(rng, task, pool, chats=chats) for task in draw(rng, settings.shares, count)]


def _starter(rng: Random, task: str, pool: Pool, *, chats: bool) -> Starter:
    begin = rng.choice(BEGINNINGS) if rng.random() < 0.5 else ""
    short = [turn for turn in pool.turns if len(turn.question) + len(turn.answer) <= LONGEST_BEFORE]
    if task == FOLLOW_UP and chats and short:
        turn = rng.choice(short)
        before = ({"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer})
        written = rng.random() < 0.3
        return Starter(task, None if written else questions.next_turn(rng), before)
    if task in (OPEN, FOLLOW_UP):
        return Starter(OPEN, None, begin=begin)
    return Starter(task, MAKERS[task](rng, pool))


@dataclass(frozen=True)
class OpenJob:
    """A turn that the target writes for the starter of this index, and the ids that end it."""

    index: int
    job: Job
    ends: frozenset[int]


def open_jobs(settings: Settings, number: int, found: Sequence[Starter], prompter: Prompter) -> list[OpenJob]:
    """Return a job for each starter whose question the target is to write; those with no room for one are left out."""
    made = []
    for i, starter in enumerate(found):
        if starter.question is None:
            turn = prompter.open_turn(starter.before, starter.begin)
            if len(turn.ids) + QUESTION_IDS + BEYOND > settings.context:
                continue
            seed = seed_of(settings.seed, number, i, "question")
            job = Job(turn.ids, settings.question_temperature, seed, QUESTION_IDS, top_p=0.95)
            made.append(OpenJob(i, job, turn.ends))
    return made


def with_questions(found: Sequence[Starter], written: Mapping[int, Answer], prompter: Prompter) -> list[Starter]:
    """Return the starters with the questions that the target wrote, by index; those without a whole one are left out.

    Of a target that does not chat, what it wrote is the beginning of a document, whole or not.
    """
    whole = []
    for index, starter in enumerate(found):
        if starter.question is not None:
            whole.append(starter)
        elif index in written:
            text = _question(starter, written[index], prompter)
            if text:
                whole.append(replace(starter, question=text))
    return whole


def _question(starter: Starter, answer: Answer, prompter: Prompter) -> str:
    """Return what the target wrote, "" where it is no question that can be answered."""
    text = (starter.begin + prompter.text(answer.ids)).strip()
    if not prompter.chats:
        return " ".join(text.split()[:DOCUMENT_WORDS])
    is_whole = answer.end == "stop" and len(text.split()) >= 2 and len(text) <= LONGEST_QUESTION
    return text if is_whole else ""


def answer_job(settings: Settings, number: int, index: int, prompt: Sequence[int]) -> Job:
    """Return the job that answers a prompt, greedily or not."""
    seed = seed_of(settings.seed, number, index, "answer")
    greedy = Random(f"{seed}:greedy").random() < settings.greedy
    return Job(prompt, 0.0 if greedy else settings.temperature, seed, settings.max_tokens)


def seed_of(seed: int, shard: int, index: int, what: str) -> int:
    """Return the seed of one request's draws, a 64-bit number."""
    text = f"{seed}:{shard}:{index}:{what}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
