"""Reads Spec-Bench questions and takes some of each task; knows no engine."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


def load_prompts(path: Path, per_task: int) -> list[tuple[str, str]]:
    """Return (task, text), the same number for each task, spread evenly over the file."""
    by_task: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        question = json.loads(line)
        task = "mt_bench" if question["category"] in MT_BENCH else question["category"]
        by_task[task].append(question["turns"][0])
    chosen = []
    for task, texts in sorted(by_task.items()):
        stride = max(1, len(texts) // per_task)
        chosen += [(task, text) for text in texts[::stride][:per_task]]
    return chosen


def other_prompts(path: Path, per_task: int, chosen: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return (task, text) as `load_prompts` does, of the tasks of `chosen` and without its texts."""
    taken, tasks = set(chosen), {task for task, _ in chosen}
    left: dict[str, list[str]] = defaultdict(list)
    for task, text in load_prompts(path, 1 << 30):
        if task in tasks and (task, text) not in taken:
            left[task].append(text)
    return [
        (task, text) for task, texts in left.items() for text in texts[:: max(1, len(texts) // per_task)][:per_task]
    ]
