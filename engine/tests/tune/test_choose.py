"""From speed-ups to a configuration: one that loads, with k = 0 where speculation loses, or none at all."""

from __future__ import annotations

import json

import pytest

from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import ConfigError, RequestError
from specdec_core.sources import TargetInfo
from specdec_engine.bench.intervals import Ratio
from specdec_engine.bench.methods import Method
from specdec_engine.tune.candidates import Candidate, find_candidates
from specdec_engine.tune.choose import Choice, Option, choose, engine_config, schedule, vllm_config
from specdec_engine.tune.table import lines

TARGET = TargetInfo(model="none", hf_config={}, vocab_size=99, hidden_size=8, num_layers=2, max_model_len=512)
LOOKUP = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}


def option(label: str, limit: int, concurrency: int, predicted: float, measured: float | None = None) -> Option:
    known = None if measured is None else Ratio(measured, None, None)
    return Option(label, limit, concurrency, Ratio(predicted, None, None), known)


def candidate(label: str = "a") -> Candidate:
    return Candidate(label, LOOKUP, [1, 2, 4], tree=False)


def test_without_a_gain_anywhere_the_answer_is_not_to_speculate() -> None:
    options = [option("a", 4, 1, 0.9, 0.8), option("a", 2, 1, 1.01), option("a", 4, 4, 0.5)]
    choice = choose(options)
    assert choice == Choice(None, {1: 0, 4: 0}) and not choice.speculates
    assert any(line.startswith("do not speculate") for line in lines(options, choice, {}))


def test_what_was_measured_counts_before_what_is_predicted() -> None:
    options = [option("a", 8, 1, 2.0, 1.2), option("a", 4, 1, 1.9, 1.5), option("a", 2, 1, 1.8)]
    assert choose(options) == Choice("a", {1: 4})


def test_one_method_is_chosen_for_all_sizes_by_the_product_of_its_gains() -> None:
    options = [
        option("a", 8, 1, 3.0),
        option("a", 8, 4, 0.7),
        option("b", 4, 1, 2.0),
        option("b", 2, 4, 1.6),
    ]
    assert choose(options) == Choice("b", {1: 4, 4: 2})


def test_a_size_where_the_method_loses_gets_none() -> None:
    choice = choose([option("a", 8, 1, 2.0), option("a", 8, 4, 0.7), option("a", 8, 8, 0.5)])
    assert choice == Choice("a", {1: 8, 4: 0, 8: 0})
    assert schedule(choice.limits) == [[1, 3, 8], [4, 8, 0]]


@pytest.mark.parametrize(
    ("limits", "ranges"),
    [
        ({1: 4}, [[1, 1, 4]]),
        ({2: 4}, [[1, 2, 4]]),
        ({4: 2, 8: 2}, [[1, 8, 2]]),
        ({1: 8, 2: 4, 4: 0}, [[1, 1, 8], [2, 3, 4], [4, 4, 0]]),
    ],
)
def test_a_schedule_begins_with_one_request_and_leaves_no_gap(limits: dict[int, int], ranges: list[list[int]]) -> None:
    assert schedule(limits) == ranges


def test_both_configurations_are_read_back_with_their_schedule() -> None:
    choice = Choice("a", {1: 4, 4: 0})
    engine = json.loads(json.dumps(engine_config(candidate(), choice)))
    config = SpeculativeConfig.parse(engine)
    assert config.num_speculative_tokens == 4
    assert config.num_speculative_tokens_per_batch_size == ((1, 3, 4), (4, 4, 0))
    vllm = json.loads(json.dumps(vllm_config(candidate(), choice)))
    assert vllm["method"] == "specdec" and vllm["num_speculative_tokens"] == 4
    inside = SpeculativeConfig.parse({**vllm["specdec"], "num_speculative_tokens": 4})
    assert inside == config


def test_the_same_number_for_all_sizes_needs_no_schedule() -> None:
    config = engine_config(candidate(), Choice("a", {1: 4, 4: 4}))
    assert config == {**LOOKUP, "num_speculative_tokens": 4}


def test_vllm_gets_no_configuration_with_trees_and_no_verifier_of_ours() -> None:
    choice = Choice("a", {1: 4})
    assert vllm_config(Candidate("a", LOOKUP, [4], tree=True), choice) is None
    ruled = Candidate("a", {**LOOKUP, "rejection_sample_method": "coupled"}, [4], tree=False)
    found = vllm_config(ruled, choice)
    assert found is not None and "rejection_sample_method" not in found["specdec"]


def test_a_number_of_drafts_in_a_configuration_is_the_most_that_is_tried() -> None:
    given = [Method("x", {**LOOKUP, "num_speculative_tokens": 5}), Method("y", LOOKUP)]
    (first, second), left_out = find_candidates(given, 3, TARGET, {})
    assert (first.limits, first.measured) == ([1, 2, 3, 4, 5], [5, 1])
    assert (second.limits, second.measured) == ([1, 2, 3], [3, 1])
    assert left_out == {}


def test_without_methods_all_installed_ones_are_tried_that_need_nothing_more() -> None:
    found, left_out = find_candidates(None, 4, TARGET, {})
    names = {each.label for each in found}
    assert "ngram" in names and not names & left_out.keys()
    assert all(reason for reason in left_out.values())


def test_a_method_that_cannot_work_and_a_schedule_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="--methods, 'x'"):
        find_candidates([Method("x", {**LOOKUP, "num_speculative_tokens": 4, "nonsense": 1})], 4, TARGET, {})
    with pytest.raises(RequestError, match="is what is looked for"):
        scheduled = {**LOOKUP, "num_speculative_tokens_per_batch_size": [[1, 4, 2]]}
        find_candidates([Method("x", scheduled)], 4, TARGET, {})
