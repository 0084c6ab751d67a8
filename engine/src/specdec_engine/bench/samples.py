"""Texts of a few outputs, token by token, with who produced each: what the report's token view shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from specdec_engine.bench.methods import PLAIN
from specdec_engine.bench.rows import Row
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.stream import TextStream

MOST_PROMPTS: Final = 8
MOST_TOKENS: Final = 256  # of one output
MARKUP: Final = 20  # characters around a token in the page
MOST_CHARACTERS: Final = 500_000  # of all, so that a page stays small whatever the tokens are


@dataclass(frozen=True)
class Sample:
    """An arm's output of a prompt: its tokens as (text, letter of who produced it)."""

    prompt: int
    task: str
    arm: str
    tokens: list[tuple[str, str]]


def samples_of(rows: Sequence[Row], tokenizer: Any) -> list[Sample]:
    """Return outputs of the smallest concurrency: the first prompt of each task, then further ones, of every method."""
    if not rows:
        return []
    fewest = min(row.concurrency for row in rows)
    found: dict[int, list[Sample]] = {}
    tasks: dict[int, str] = {}
    for row in rows:
        if row.concurrency != fewest or row.arm == PLAIN:
            continue
        for place, prompt in enumerate(row.prompts):
            tasks[prompt] = row.task
            found.setdefault(prompt, []).append(_sample(row, place, tokenizer))
    chosen, left = [], MOST_CHARACTERS
    for prompt in _first_of_each(tasks)[:MOST_PROMPTS]:
        left -= sum(len(escape(text)) + MARKUP for sample in found[prompt] for text, _ in sample.tokens)
        if left < 0:
            break
        chosen += found[prompt]
    return chosen


def _first_of_each(tasks: dict[int, str]) -> list[int]:
    """Return prompts, the first of every task before the second of any."""
    seen: dict[str, int] = {}
    order = []
    for prompt, task in sorted(tasks.items()):
        seen[task] = seen.get(task, 0) + 1
        order.append((seen[task], prompt))
    return [prompt for _, prompt in sorted(order)]


def _sample(row: Row, place: int, tokenizer: Any) -> Sample:
    ids = row.ids[place][:MOST_TOKENS]
    pieces = _pieces(ids, tokenizer)
    return Sample(row.prompts[place], row.task, row.arm, list(zip(pieces, row.producers[place], strict=False)))


def _pieces(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """Return what each id adds to the text; bytes inside a character add nothing, its last one all of it."""
    stream, shown, pieces = TextStream(tokenizer, SamplingParams(skip_special_tokens=False)), 0, []
    for count in range(1, len(ids) + 1):
        text = stream.update(list(ids[:count]), finished=count == len(ids))
        pieces.append(text[shown:])
        shown = len(text)
    return pieces
