"""Loops are found where they are, and nowhere else; texts that are nearly others are told from new ones."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from specdec_train.collect.repetition import Seen, before_loop


@pytest.mark.parametrize("period", [1, 2, 5, 8, 30, 96])
def test_a_loop_is_cut_behind_its_second_period(period: int) -> None:
    rng = Random(period)
    text = [1000 + i for i in range(13)]
    loop = [rng.randrange(100) * 2 + i % 2 for i in range(period)]
    times = max(3, -(-24 // period))
    looping = np.array(text + loop * times, np.int32)
    assert before_loop(looping) == len(text) + 2 * period
    assert before_loop(np.array(text + loop * 2, np.int32)) is None
    assert before_loop(np.array(text + loop * times + [77777], np.int32)) is None


def test_text_without_a_loop_is_left_alone() -> None:
    rng = Random(0)
    for length in (0, 1, 8, 24, 300):
        assert before_loop(np.array([rng.randrange(50) for _ in range(length)], np.int32)) is None


def test_a_text_most_of_which_was_there_before_is_not_new() -> None:
    seen = Seen(4, 0.5)
    text = list(range(100))
    assert seen.add(text) and not seen.add(text)
    assert not seen.add([*text[:70], *range(500, 530)])
    assert seen.add([*text[:30], *range(600, 670)])


def test_what_is_learned_above_stays_there() -> None:
    below = Seen(3, 0.5)
    below.learn("one two three four five".split())
    above = below.above()
    assert not above.add("one two three four five".split())
    assert above.add("six seven eight nine".split()) and not above.add("six seven eight nine".split())
    assert below.add("six seven eight nine".split())
