"""Starters: every task makes many different ones, the same in every process, with the shares that were asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from specdec_core.errors import RequestError
from specdec_train.collect.starters import passages
from specdec_train.collect.starters.tasks import MAKERS, SHARES, Pool, Turn, draw, read_shares, text_of

SHOWN = """
from random import Random
from specdec_train.collect.starters.tasks import MAKERS, Pool
rng = Random(4)
print([make(rng, Pool()) for make in MAKERS.values() for _ in range(5)])
"""


@pytest.mark.parametrize("task", MAKERS)
def test_a_task_has_many_different_starters_without_an_open_field(task: str) -> None:
    rng = Random(1)
    made = [MAKERS[task](rng, Pool()) for _ in range(200)]
    assert len(set(made)) > 150
    assert all(text.strip() == text and len(text) > 5 for text in made)
    if task not in ("code", "edit", "summary", "passages", "copy"):  # whose code and library texts have braces
        assert not [text for text in made if "{" in text or "}" in text]


def test_starters_are_the_same_in_every_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", SHOWN], env=environment, check=True, capture_output=True, text=True)
    rng = Random(4)
    here = [make(rng, Pool()) for make in MAKERS.values() for _ in range(5)]
    assert done.stdout == f"{here}\n" and len(done.stdout) > 1000


def test_long_contexts_are_covered_and_texts_of_the_target_are_taken_up() -> None:
    rng = Random(2)
    lengths = [len(MAKERS["summary"](rng, Pool()).split()) for _ in range(200)]
    assert min(lengths) < 200 and sum(length > 380 for length in lengths) > 50 and max(lengths) < 1000
    own = " ".join(f"word{i}" for i in range(90))
    pool = Pool([Turn("q", own, "writing")])
    assert sum(own[:40] in text_of(rng, pool, 60, 120) for _ in range(200)) > 50


def test_the_library_has_prose_and_functions() -> None:
    found = passages.library()
    assert sum(len(part.split()) for run in found.prose for part in run) > 20_000
    assert len(found.functions) > 300
    assert all(function.startswith(("def ", "@")) for function in found.functions)


def test_each_task_gets_its_share_of_every_shard() -> None:
    rng = Random(0)
    for count in (7, 100, 128):
        drawn = Counter(draw(rng, SHARES, count))
        assert drawn.total() == count
        for task, weight in SHARES.items():
            exact = count * weight / sum(SHARES.values())
            assert int(exact) <= drawn[task] <= exact + len(SHARES)
    assert set(draw(rng, read_shares(["math=0", "open=0", "code=1e9"]), 50)) == {"code"}


@pytest.mark.parametrize("text", ["mathe=3", "math", "math=", "math=-1", "math=nan", "math=inf"])
def test_a_share_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError, match=r"--share.*(no task 'mathe'|expected TASK=WEIGHT)"):
        read_shares([text])
    with pytest.raises(RequestError, match="all weights are 0"):
        read_shares([f"{task}=0" for task in SHARES])
