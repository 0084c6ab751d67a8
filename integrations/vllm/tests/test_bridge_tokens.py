"""With methods that read the target's states, greedy text is that of vLLM without speculation in every batch."""

from __future__ import annotations

import itertools

import pytest
from conftest import engine, metrics, tokens
from test_vllm_tokens import CACHED, CROWDED, params, prompts
from vllm_heads import HEADS, over_the_bridge, perfect_eagle
from vllm_models import random_llama, table_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("deep") / "llama", layers=4)


@pytest.fixture(scope="module")
def expected(llama):
    with engine(llama) as llm:
        return tokens(llm, prompts(), params())


@pytest.mark.parametrize("method", HEADS)
def test_crowded_batches_with_chunks_and_preemption_say_what_plain_decoding_says(method, llama, expected, tmp_path):
    with engine(llama, **over_the_bridge(HEADS[method](tmp_path / "draft")), **CROWDED) as llm:
        assert tokens(llm, prompts(), params()) == expected
        counted = metrics(llm)
    assert counted["num_preemptions"] > 0
    assert counted["spec_decode_num_draft_tokens"] > 1000


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_cached_prefixes_change_nothing_nor_does_a_second_time(method, llama, expected, tmp_path):
    with engine(llama, **over_the_bridge(HEADS[method](tmp_path / "draft")), **CACHED) as llm:
        assert tokens(llm, prompts(), params()) == expected
        assert tokens(llm, prompts(), params()) == expected
        counted = metrics(llm)
    assert counted["prefix_cache_hits"] > 0
    assert counted["spec_decode_num_draft_tokens"] > 1000


@pytest.mark.fast
def test_of_a_perfect_head_every_draft_is_accepted_and_counted(tmp_path):
    """Twelve ids follow each other in a ring with side ways, so that no two places look alike."""
    import torch
    from vllm import SamplingParams

    size = 12
    distribution = torch.tensor([[9.0 if j == (5 * i + 1) % size else 1.0 for j in range(size)] for i in range(size)])
    folder = table_llama(tmp_path / "table", distribution / distribution.sum(dim=1, keepdim=True))
    asked = [[3], [1, 2, 3, 4, 5, 6, 7], [11, 0]]
    greedy = SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True)
    with engine(folder, **over_the_bridge(perfect_eagle(tmp_path / "head", size))) as llm:
        found = tokens(llm, asked, greedy)
        counted = metrics(llm)
    for prompt, (ids,) in zip(asked, found, strict=True):
        text = [*prompt[-1:], *ids]
        assert all(b == (5 * a + 1) % size for a, b in itertools.pairwise(text))
    # 41 ids are the first one and eight steps of a draft of 4 with its bonus token, for each of three requests.
    assert counted["spec_decode_num_drafts"] == 3 * 8
    assert counted["spec_decode_num_draft_tokens"] == 3 * 8 * 4
    assert counted["spec_decode_num_accepted_tokens"] == 3 * 8 * 4
    assert counted["spec_decode_num_accepted_tokens_per_pos"] == [3 * 8] * 4
