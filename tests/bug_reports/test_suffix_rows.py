"""Suffix decoding, docs/bug-reports.md: drafts past an end, lengths, a cache without bound, threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import ids_of, params, prompts, run, target
from words import lettered_tokenizer, tiny_tokenizer

from specdec_engine import LLM, SamplingParams
from specdec_engine.sampling_params import StructuredOutputsParams
from specdec_plugin_suffix.cache import SuffixCache
from specdec_testing.table import table_target
from specdec_testing.targets import tiny_target

SUFFIX: dict[str, Any] = {"method": "suffix", "num_speculative_tokens": 8}
EOS = 2


def resident() -> int:
    """Bytes of this process in memory."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not say what a process has in memory")
    return int(statm.read_text().split()[1]) * 4096


def test_a_warm_cache_that_knows_what_follows_a_stop_text_changes_nothing_row_25() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    texts = [tokenizer(text)["input_ids"] for text in ("the cat", "a hat")]
    whole = SamplingParams(temperature=0.0, max_tokens=60)
    stops = [result.outputs[0].text[12:16] for result in run(model, texts, whole, tokenizer=tokenizer)]
    sampling = SamplingParams(temperature=0.0, max_tokens=60, stop=stops)
    plain = run(model, texts, sampling, tokenizer=tokenizer)
    config = {**SUFFIX, "num_speculative_tokens": 24, "suffix_decoding_max_spec_factor": 8.0}
    with LLM(hf_model=model, tokenizer=tokenizer, speculative_config=config, strict=True) as llm:
        llm.generate(texts, whole)
        warm = llm.generate(texts, sampling)
    for one, other in zip(plain, warm, strict=True):
        assert other.outputs[0] == one.outputs[0]
        assert (other.outputs[0].finish_reason, other.outputs[0].stop_reason in stops) == ("stop", True)
    assert sum(result.metrics.accepted - result.metrics.accepted_kept for result in warm) > 0, "drafts went past it"


def test_drafts_past_the_end_of_a_form_are_never_fed_to_its_matcher_row_36() -> None:
    tokenizer = lettered_tokenizer(128, EOS)
    text = [tokenizer.decode([i]) for i in range(128)]
    model = tiny_target("llama", vocab_size=128, eos_token_id=EOS)
    form = StructuredOutputsParams(choice=[text[10] + text[11], text[10] + text[12]])
    sampling = SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=form)
    # The prompt says what follows 10: whichever the model takes, the end, and then more.
    texts = [[30, 10, which, EOS, 10, which, EOS, 10, which, EOS, 5] for which in (11, 12)]
    plain = run(model, texts, sampling, tokenizer=tokenizer)
    spec = run(model, texts, sampling, tokenizer=tokenizer, config={**SUFFIX, "suffix_decoding_max_spec_factor": 9.0})
    assert ids_of(spec) == ids_of(plain)
    assert all(result.outputs[0].finish_reason == "stop" for result in spec)
    assert sum(result.metrics.drafted for result in spec) > 0
    assert sum(result.metrics.proposed for result in spec) > sum(result.metrics.drafted for result in spec)


def test_where_nothing_matches_nothing_is_drafted_or_counted_row_41() -> None:
    count = np.eye(40)[(np.arange(40) + 1) % 40]  # the model counts, so no id comes twice
    sampling = SamplingParams(temperature=0.0, max_tokens=30)
    (result,) = run(table_target(count), [[0]], sampling, config=SUFFIX)
    assert result.outputs[0].token_ids == list(range(1, 31))
    metrics = result.metrics
    assert (metrics.drafts, metrics.proposed, metrics.drafted, metrics.accepted) == (0, 0, 0, 0)
    assert metrics.empty > 0
    assert metrics.as_json()["acceptance_rate"] is None


def test_drafts_stop_before_the_context_does_row_42() -> None:
    model = table_target(np.eye(4)[(np.arange(4) + 1) % 4])
    config = {**SUFFIX, "suffix_decoding_max_spec_factor": 8.0, "suffix_decoding_min_token_prob": 0.0}
    sampling = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (spec,) = run(model, [[0, 1, 2, 3] * 3], sampling, config=config, max_model_len=16)
    assert (spec.outputs[0].token_ids, spec.outputs[0].finish_reason) == ([0, 1, 2, 3], "length")
    assert spec.metrics.drafted == spec.metrics.accepted == 16 - 12 - 2, "one id before them, and one after"


def test_the_most_frequent_continuation_is_copied_whole_row_92() -> None:
    cache = SuffixCache()
    cache.start("a", [1, 2, 3, 8, 0, 1, 2, 3, 8, 0, 1, 2, 3, 8, 0, 1, 2, 4, 9, 0, 1, 2])
    assert cache.speculate("a", 2).tokens.tolist() == [3, 8]


def test_a_thousand_requests_leave_a_flat_cache_row_93() -> None:
    numba = pytest.importorskip("specdec_plugin_suffix.kernels.numba")
    rng = np.random.default_rng(93)
    cache = SuffixCache(24, 4, max_tokens=600, forest=numba.Forest)
    nodes, sizes = [], []
    for i in range(1000):
        cache.start(i, rng.integers(0, 50, 20, np.int32))
        for _ in range(20):
            cache.extend(i, rng.integers(0, 50, 10, np.int32))
            assert cache.stats().tokens <= 600
        cache.stop(i)
        nodes.append(cache.stats().nodes)
        sizes.append(resident())
    assert cache.stats().responses <= 4
    assert max(nodes[100:]) < 1.2 * min(nodes[100:])
    assert max(sizes[100:]) - min(sizes[100:]) < 4e6
    off = SuffixCache(24, 0, forest=numba.Forest)
    for i in range(50):
        off.start(i, [1, 2])
        off.extend(i, [3, 4, 5])
        off.stop(i)
    assert (off.stats().tokens, off.stats().responses, off.shared()) == (0, 0, [])


def test_thirty_six_requests_at_once_and_again_say_what_they_say_alone_row_94() -> None:
    model = target("llama")
    texts = prompts([9 + i % 7 for i in range(36)], seed=94)
    sampling = params(36, max_tokens=12)
    plain = run(model, texts, sampling)
    with LLM(hf_model=model, speculative_config=SUFFIX, strict=True, max_num_seqs=36) as llm:
        for _ in range(2):
            stream = llm.stream(texts, sampling)
            for _ in range(40):
                next(stream)
            stream.close()  # all that still run are aborted half way
            spec = llm.generate(texts, sampling)
            assert ids_of(spec) == ids_of(plain)
    assert sum(result.metrics.accepted for result in spec) > 36
