"""Greedy text is that of vLLM without speculation, whatever the batch does meanwhile; and vLLM's counters are right."""

from __future__ import annotations

import random

import pytest
from conftest import engine, metrics, tokens
from vllm_recording import Recording, drafted_and_accepted

K = 6
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SUFFIX = {"method": "suffix"}
ROOT = "vllm_recording."


def unchanged(options, name="Nameless"):
    """Without patches: `custom_class`."""
    speculative = {"method": "custom_class", "model": ROOT + name, "num_speculative_tokens": K}
    return {"speculative_config": speculative, "additional_config": {"specdec": options}}


def plugin(method, **options):
    return {
        "speculative_config": {"method": "specdec", "model": method, "num_speculative_tokens": K, "specdec": options}
    }


WAYS = {
    "ngram, custom_class": unchanged(NGRAM),
    "suffix, custom_class": unchanged(SUFFIX),
    "ngram, plugin": plugin("ngram", prompt_lookup_min=1, prompt_lookup_max=3),
    "suffix, plugin": plugin("suffix", suffix_decoding_min_token_prob=0.0),
    "vLLM's suffix": {"speculative_config": {"method": "suffix", "num_speculative_tokens": K}},
}
# Chunks of 32 ids and a cache for about two of the longest requests; or cached prefixes.
CROWDED = {"max_num_batched_tokens": 32, "num_gpu_blocks_override": 5, "block_size": 128}
CACHED = {"enable_prefix_caching": True, "block_size": 32}


def prompts():
    draw = random.Random(1)
    lone = [[draw.randrange(2, 96) for _ in range(n)] for n in (5, 90, 17, 3, 40, 70, 9, 33, 120, 12)]
    shared = lone[1][:64]
    return [*lone, *([*shared, i, i + 1] for i in range(4)), [2, 2, 2, 2], lone[0]]


def params():
    """Each request leaves at another time; two run into the longest context."""
    from vllm import SamplingParams

    lengths = [7, 60, 23, 80, 31, 12, 44, 90, 140, 300, 25, 38, 9, 51, 70, 16]
    return [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]


@pytest.fixture(scope="module")
def expected(llama):
    with engine(llama) as llm:
        return tokens(llm, prompts(), params())


@pytest.mark.parametrize("way", WAYS)
def test_crowded_batches_with_chunks_and_preemption_say_what_plain_decoding_says(llama, expected, way):
    with engine(llama, **WAYS[way], **CROWDED) as llm:
        assert tokens(llm, prompts(), params()) == expected
        counted = metrics(llm)
    assert counted["num_preemptions"] > 0
    assert counted["spec_decode_num_accepted_tokens"] > 50


@pytest.mark.parametrize("way", WAYS)
def test_cached_prefixes_change_nothing_nor_does_a_second_time(llama, expected, way):
    with engine(llama, **WAYS[way], **CACHED) as llm:
        assert tokens(llm, prompts(), params()) == expected
        assert tokens(llm, prompts(), params()) == expected
        counted = metrics(llm)
    assert counted["prefix_cache_hits"] > 0
    assert counted["spec_decode_num_accepted_tokens"] > 50


def test_samples_of_one_prompt_are_apart_and_counters_are_those_of_the_drafts(llama, expected):
    """Sampled with top_k 1, since vLLM refuses greedy samples; five answers of one prompt and other requests."""
    from vllm import SamplingParams

    several = SamplingParams(temperature=1.0, top_k=1, n=5, max_tokens=40, ignore_eos=True)
    for name in ("Recording", "Nameless"):
        with engine(llama, **unchanged(NGRAM, name)) as llm:
            found = tokens(llm, [prompts()[1]], several)
            assert found == [expected[1] and [expected[1][0][:40]] * 5], name
            assert tokens(llm, prompts()[:8], params()[:8]) == expected[:8]
            counted = metrics(llm)
        own = drafted_and_accepted(Recording.calls, K)
        assert own["spec_decode_num_accepted_tokens"] > 50
        assert {key: counted[key] for key in own} == own, name


def test_near_the_longest_context_drafts_end_there_and_no_fillers_are_counted(llama, expected):
    """vLLM by itself asks no drafter then and verifies zeros (docs/bug-reports.md, row 41)."""
    with engine(llama, **unchanged(NGRAM, "Recording")) as llm:
        assert tokens(llm, prompts()[8:10], params()[8:10]) == expected[8:10]
        counted = metrics(llm)
    own = drafted_and_accepted(Recording.calls, K)
    assert {key: counted[key] for key in own} == own
