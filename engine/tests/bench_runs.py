"""Building blocks of the tests of `specdec bench` and `specdec replay`: methods, prompts, and what a run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specdec_testing.commands import run_specdec

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 4}
MERGED = {"method": "combine", "rule": "merge", "methods": [SUFFIX, NGRAM]}
UNCUT = {"cut_by_cost": False}  # what is cut depends on times, and these runs are to repeat
METHODS = {"n-gram": {**NGRAM, **UNCUT}, "suffix": {**SUFFIX, **UNCUT}, "both": {**MERGED, **UNCUT}}
EVIL = "<script>alert(1)</script>"
QUESTIONS = (
    {"question_id": 1, "category": "writing", "turns": ["the cat sat on the mat the cat", "more"]},
    {"question_id": 2, "category": "math", "turns": ["a hat and a hat and a"]},
    {"question_id": 3, "category": "qa", "turns": ["日本 the cat 日本"]},
    {"question_id": 4, "category": "qa", "turns": ["the dog and the cat"]},
    {"question_id": 5, "category": EVIL, "turns": [EVIL]},
)


def question_file(folder: Path) -> Path:
    """Questions as Spec-Bench has them."""
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS), encoding="utf-8")
    return file


def bench(model: Path, prompts: Path, *arguments: Any, methods: Any = METHODS) -> Any:
    """Run the command on methods; few tokens unless told otherwise."""
    given = ("--methods", json.dumps(methods), *arguments)
    tokens = () if "--max-tokens" in arguments else ("--max-tokens", 16)
    return run_specdec("bench", model, "--prompts", prompts, *given, *tokens)
