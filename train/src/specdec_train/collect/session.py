"""Collecting, shard by shard: each is made from the settings, its number and the shards before it, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from specdec_core.errors import RequestError
from specdec_train.collect import plan
from specdec_train.collect.decode import Answer, Decoder, Job
from specdec_train.collect.memory import Kept, Memory, content, is_compared, words
from specdec_train.collect.plan import Starter
from specdec_train.collect.progress import Progress
from specdec_train.collect.prompts import Prompter
from specdec_train.collect.settings import LEAST_ANSWER, Limits, Settings
from specdec_train.collect.starters.tasks import OPEN
from specdec_train.data import Collected, Data, Manifest, Writer
from specdec_train.replacing import replace_file


class Session:
    """One run of `specdec train collect`."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        settings: Settings,
        prompter: Prompter,
        decoder: Decoder,
        progress: Progress,
    ) -> None:
        """Make the folder, or take up what is there. Raises RequestError for data of other settings."""
        self._settings, self._prompter, self._decoder, self._progress = settings, prompter, decoder, progress
        self._writer = Writer(folder, manifest)
        self._memory = Memory()
        self._dropped: Counter[str] = Counter()
        for kept in _on_disk(self._writer):
            self._memory.learn(kept, prompter.end_ids)

    @property
    def manifest(self) -> Manifest:
        """What has been collected so far."""
        return self._writer.manifest

    def run(self, limits: Limits) -> None:
        """Collect until a limit is reached or the user's prompts are used up.

        Raises RequestError where the target writes nothing that can be kept.
        """
        begun, longest = monotonic(), 0.0
        while limits.ids is None or self.manifest.ids < limits.ids:
            before = monotonic()
            # A shard that would end too late is not begun.
            if limits.minutes is not None and before - begun + 0.8 * longest > 60 * limits.minutes:
                return
            number = self._writer.number
            found = plan.starters(self._settings, number, self._memory.pool, chats=self._prompter.chats)
            if not found:
                return
            self._shard(number, found)
            longest = max(longest, monotonic() - before)

    def _shard(self, number: int, found: Sequence[Starter]) -> None:
        memory, dropped = self._memory.shard(), Counter[str]()
        whole = self._with_questions(number, found)
        dropped["question not whole"] = len(found) - len(whole)
        chosen = list(self._with_prompts(number, whole, memory, dropped))
        answers = self._decoder.answer([job for _, job in chosen], self._prompter.end_ids, states=True)
        kept: list[Kept] = []
        requests: list[Collected] = []
        for (starter, job), answer in zip(chosen, answers, strict=True):
            if not self._is_kept(starter, answer, memory, dropped):
                continue
            assert answer.last is not None and answer.aux is not None
            kept.append(Kept(starter.task, job.prompt, answer.ids, self._texts(starter, job, answer)))
            task = self.manifest.tasks.index(starter.task)
            requests.append(Collected([*job.prompt, *answer.ids], len(job.prompt), task, answer.last, answer.aux))
        self._dropped += dropped
        if not kept and self._settings.prompts is None:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items() if count)
            message = (
                f"of the {len(found)} requests of shard {number} none can be kept ({reasons}); other tasks may do "
                f"better (--share), or your own --prompts"
            )
            raise RequestError(message)
        _write_texts(self._writer.folder, number, [each.texts for each in kept])
        entry = self._writer.write(requests)
        self._memory.learn(kept, self._prompter.end_ids)
        self._progress.shard(self.manifest, entry, self._dropped)

    def _with_questions(self, number: int, found: Sequence[Starter]) -> list[Starter]:
        opened = plan.open_jobs(self._settings, number, found, self._prompter)
        ends = frozenset[int]().union(*(each.ends for each in opened))
        answers = self._decoder.answer([each.job for each in opened], ends, states=False) if opened else []
        written = {each.index: answer for each, answer in zip(opened, answers, strict=True)}
        return plan.with_questions(found, written, self._prompter)

    def _with_prompts(
        self, number: int, found: Sequence[Starter], memory: Memory, dropped: Counter[str]
    ) -> Iterator[tuple[Starter, Job]]:
        """Yield starters with what is to be decoded; those that were there before, or are too long, are left out."""
        for index, starter in enumerate(found):
            ids = self._prompter.ids(starter.messages)
            if len(ids) > self._settings.longest_prompt:
                dropped["prompt too long"] += 1
            elif tuple(ids) in memory.prompts:
                dropped["prompt seen before"] += 1
            elif starter.task == OPEN and not memory.questions.add(words(starter.question or "")):
                dropped["question seen before"] += 1
            else:
                memory.prompts.add(tuple(ids))
                yield starter, plan.answer_job(self._settings, number, index, ids)

    def _is_kept(self, starter: Starter, answer: Answer, memory: Memory, dropped: Counter[str]) -> bool:
        said = content(answer.ids, self._prompter.end_ids)
        if not said:
            dropped["answer empty"] += 1
        elif answer.end == "loop" and len(said) < 2 * LEAST_ANSWER:
            dropped["answer a loop"] += 1
        elif is_compared(starter.task, answer.ids) and not memory.answers.add(said):
            dropped["answer seen before"] += 1
        else:
            return True
        return False

    def _texts(self, starter: Starter, job: Job, answer: Answer) -> dict[str, Any]:
        return {
            "task": starter.task,
            "question": starter.question,
            "answer": self._prompter.text(answer.ids),
            "turns_before": len(starter.before),
            "temperature": job.temperature,
            "end": answer.end,
        }


def _on_disk(writer: Writer) -> Iterator[list[Kept]]:
    """Yield the requests of each shard that is there."""
    if not writer.number:
        return
    names = writer.manifest.tasks
    for number, shard in enumerate(Data(writer.folder).shards):
        texts = _read_texts(writer.folder, number)
        ids = shard.ids.tolist()
        bounds = zip(shard.offsets[:-1], shard.offsets[1:], shard.prompts, shard.tasks, texts, strict=True)
        yield [
            Kept(names[task], ids[start : start + prompt], ids[start + prompt : end], text)
            for start, end, prompt, task, text in bounds
        ]


def _text_file(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.jsonl"


def _write_texts(folder: Path, number: int, texts: Sequence[dict[str, Any]]) -> None:
    """Write the texts of a shard, one a line, before the shard itself."""
    lines = "".join(f"{json.dumps(text, ensure_ascii=False)}\n" for text in texts)
    replace_file(_text_file(folder, number), lambda new: new.write_text(lines, encoding="utf-8"))


def _read_texts(folder: Path, number: int) -> list[dict[str, Any]]:
    file = _text_file(folder, number)
    try:
        with file.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read, and a collection that goes on needs it: {error}"
        raise RequestError(message) from error
