"""The keys of the configuration: bounds fill each other in, and what cannot be is refused in words."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from specdec_plugin_ngram.options import NgramOptions


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, 2, 4),
        ({"prompt_lookup_min": None, "prompt_lookup_max": 7}, 7, 7),
        ({"prompt_lookup_min": 3, "prompt_lookup_max": None}, 3, 3),
        ({"prompt_lookup_min": None, "prompt_lookup_max": None}, 5, 5),
    ],
)
def test_a_missing_bound_equals_the_other_and_two_are_five(given, low, high):
    options = NgramOptions(**given)
    assert (options.prompt_lookup_min, options.prompt_lookup_max) == (low, high)
    assert options.match == "earliest"


def test_an_empty_range_is_refused_with_both_numbers_and_a_way_out():
    with pytest.raises(ValidationError, match=r"prompt_lookup_min is 5 and prompt_lookup_max is 3.*leave one out"):
        NgramOptions(prompt_lookup_min=5, prompt_lookup_max=3)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"prompt_lookup_min": 0}, "prompt_lookup_min"),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 0}, "prompt_lookup_max"),
        ({"prompt_lookup_max": -2}, "prompt_lookup_max"),
        ({"match": "newest"}, "match"),
        ({"ngram_prompt_lookup_max": 10}, "ngram_prompt_lookup_max"),
    ],
)
def test_a_bad_value_or_an_unknown_key_is_refused_by_name(given, key):
    with pytest.raises(ValidationError, match=key):
        NgramOptions(**given)


@pytest.mark.parametrize("value", [0, "four"])
def test_only_the_key_that_was_given_is_complained_of(value):
    with pytest.raises(ValidationError) as caught:
        NgramOptions(prompt_lookup_max=value)
    assert [detail["loc"] for detail in caught.value.errors()] == [("prompt_lookup_max",)]


def test_options_cannot_be_changed():
    options = NgramOptions()
    with pytest.raises(ValidationError):
        options.match = "latest"
