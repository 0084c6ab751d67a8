"""The place in a prediction: found again after every kind of difference, and the same however the ids arrive."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_plugin_predicted.alignment import Alignment

TEXT = random.Random(7).choices(range(3, 400), k=200)


def followed(prediction, output, k=8):
    """Return the draft before each id of the output, and the one after it."""
    alignment = Alignment(np.asarray(prediction, np.int32))
    drafts = []
    for token in output:
        drafts.append(alignment.draft(k).tolist())
        alignment.extend(np.asarray([token], np.int32))
    return [*drafts, alignment.draft(k).tolist()]


def wrong_places(drafts, output):
    return [i for i, draft in enumerate(drafts[:-1]) if draft and draft[0] != output[i]]


def silent_places(drafts):
    return [i for i, draft in enumerate(drafts[:-1]) if not draft]


def test_a_right_prediction_is_drafted_to_its_end():
    drafts = followed(TEXT, TEXT)
    assert [draft[0] for draft in drafts[:-1]] == TEXT
    assert drafts[0] == TEXT[:8]
    assert drafts[-1] == []


@pytest.mark.parametrize(
    ("change", "most"),
    [
        pytest.param(lambda t: [*t[:50], 999, *t[51:]], 1, id="one-id-replaced"),
        pytest.param(lambda t: [*t[:50], 999, 998, 997, *t[51:]], 4, id="one-id-becomes-three"),
        pytest.param(lambda t: [*t[:50], 999, *t[54:]], 5, id="four-become-one"),
        pytest.param(lambda t: [*t[:50], *range(900, 930), *t[50:]], 34, id="thirty-inserted"),
        pytest.param(lambda t: [*t[:50], *t[60:]], 3, id="ten-deleted"),
        pytest.param(lambda t: [*t[:50], *t[150:]], 4, id="a-hundred-deleted"),
        pytest.param(lambda t: [*t[100:], *t[:100]], 8, id="halves-swapped"),
    ],
)
def test_after_a_difference_the_place_is_found_again(change, most):
    output = change(TEXT)
    drafts = followed(TEXT, output)
    lost = wrong_places(drafts, output) + silent_places(drafts)
    assert len(lost) <= most
    assert drafts[-2][:1] == output[-1:]


def test_a_prediction_of_another_text_is_given_up():
    output = random.Random(8).choices(range(500, 900), k=300)
    drafts = followed(TEXT, output)
    assert len(wrong_places(drafts, output)) <= 2
    assert drafts[-1] == []


def test_chance_matches_of_a_small_vocabulary_cost_few_drafts():
    rng = random.Random(9)
    prediction, output = rng.choices(range(50), k=400), rng.choices(range(50), k=400)
    drafts = followed(prediction, output)
    assert len(wrong_places(drafts, output)) <= 20


@pytest.mark.parametrize("size", [2, 5, 300])
def test_the_place_is_the_same_in_whatever_pieces_the_ids_arrive(size):
    rng = random.Random(size)
    for _ in range(40):
        prediction = np.asarray(rng.choices(range(size), k=rng.randint(0, 40)), np.int32)
        output = rng.choices(range(size), k=60)
        if rng.random() < 0.5:
            cut = rng.randint(0, len(prediction))
            output[:cut] = prediction[:cut].tolist()
        pieces, at = Alignment(prediction), 0
        one_by_one = Alignment(prediction)
        while at < len(output):
            step = rng.randint(0, 7)
            pieces.extend(np.asarray(output[at : at + step], np.int32))
            for token in output[at : at + step]:
                one_by_one.extend(np.asarray([token], np.int32))
            at += step
            assert pieces.draft(9).tolist() == one_by_one.draft(9).tolist()


def test_an_empty_prediction_and_a_limit_of_nothing_draft_nothing():
    assert followed([], [1, 2, 3]) == [[], [], [], []]
    assert Alignment(np.asarray([1, 2], np.int32)).draft(0).tolist() == []
