"""Which prompts a benchmark runs, of which task each is, and which of them run together; knows no engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec_engine.text.prompt_files import read_file

# Categories of MT-bench, which Spec-Bench (arXiv:2401.07851, section 3) takes together as one task.
MT_BENCH: Final = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
)
ONE_TASK: Final = "prompts"  # the task of prompts that name none


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt with its task, and where it was read."""

    task: str
    text: str
    where: str


@dataclass(frozen=True)
class Unit:
    """Prompts of one task that are submitted together: what is timed as one, by every arm in turn.

    concurrency  how many prompts were to run together; the last unit of a task may have fewer
    number       place among the units of this concurrency
    prompts      their places among all prompts
    """

    concurrency: int
    number: int
    task: str
    prompts: tuple[int, ...]


def load_prompts(file: Path, limit: int | None) -> list[BenchPrompt]:
    """Return the prompts of a file; with a limit, so many of them, spread over the tasks and each task's prompts.

    Spec-Bench's questions (an object a line with 'category' and 'turns', of which the first is the prompt), objects
    with 'prompt' and maybe 'category' or 'task', or one prompt a line. Raises RequestError as `read_file`.
    """
    found = [BenchPrompt(_task(each.keys), each.text, each.where) for each in read_file(file)]
    return found if limit is None or limit >= len(found) else _spread(found, limit)


def units_of(prompts: Sequence[BenchPrompt], concurrency: int) -> list[Unit]:
    """Return the units of one concurrency: neighbours of one task, tasks in turn as far as they go."""
    by_task: dict[str, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_task[prompt.task].append(index)
    chunks = [
        (at, task, tuple(indexes[at : at + concurrency]))
        for task, indexes in by_task.items()
        for at in range(0, len(indexes), concurrency)
    ]
    chunks.sort(key=lambda chunk: chunk[0])  # stable: tasks in the order of the file
    return [Unit(concurrency, number, task, chosen) for number, (_, task, chosen) in enumerate(chunks)]


def _task(keys: Mapping[str, Any]) -> str:
    name = keys.get("task", keys.get("category"))
    if not isinstance(name, str) or not name:
        return ONE_TASK
    return "mt_bench" if name in MT_BENCH else name


def _spread(prompts: Sequence[BenchPrompt], limit: int) -> list[BenchPrompt]:
    """Return `limit` of the prompts in order of the file: as many of each task as there are turns for it."""
    by_task: dict[str, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_task[prompt.task].append(index)
    counts = dict.fromkeys(by_task, 0)
    while sum(counts.values()) < limit:
        for task, indexes in by_task.items():
            if counts[task] < len(indexes) and sum(counts.values()) < limit:
                counts[task] += 1
    chosen = [
        indexes[i * len(indexes) // counts[task]] for task, indexes in by_task.items() for i in range(counts[task])
    ]
    return [prompts[index] for index in sorted(chosen)]
