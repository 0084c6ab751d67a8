"""The prompts of `specdec verify` where a user names none: short, of several kinds, most with something to repeat."""

from __future__ import annotations

from typing import Final

from specdec_engine.bench.prompts import ONE_TASK, BenchPrompt

DEFAULT_PROMPTS: Final = (
    "The red boat follows the blue boat, the blue boat follows the green boat, and the green boat follows the",
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return width *",
    "Shopping list:\n- two apples\n- two pears\n- two lemons\n- two",
    "Question: What is the capital of Norway?\nAnswer: The capital of Norway is",
    '{"name": "Ada", "age": 36, "city": "London"}\n{"name": "Grace", "age": 41, "city": "New York"}\n{"name":',
    "1 + 1 = 2\n2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "On the first day the miller's daughter climbed the hill behind the house, and from the top she could see",
    "Grüße aus Köln! 東京は晴れ、京都は雨。 Grüße aus Köln! 東京は",
)


def own_prompts() -> list[BenchPrompt]:
    """Return them as `load_prompts` would."""
    return [BenchPrompt(ONE_TASK, text, f"our own prompt {number}") for number, text in enumerate(DEFAULT_PROMPTS)]
