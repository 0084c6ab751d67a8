"""Values that callers really have: numpy's scalars count as numbers, seeds are 64 bits, nothing need be emitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import ids_of, prompts, target

from specdec_core.config.plain_values import plain
from specdec_core.errors import RequestError, TargetError
from specdec_engine import LLM, SamplingParams, StructuredOutputsParams
from specdec_testing.stubs import Fixed, stub_plugin

NUMPY: dict[str, tuple[Any, Any]] = {
    "n": (np.int64(2), 2),
    "presence_penalty": (np.float32(0.5), 0.5),
    "frequency_penalty": (np.float64(0.25), 0.25),
    "repetition_penalty": (np.float16(1.5), 1.5),
    "temperature": (np.float32(0.5), 0.5),
    "top_p": (np.float32(0.5), 0.5),
    "top_k": (np.int32(5), 5),
    "min_p": (np.float32(0.125), 0.125),
    "seed": (np.uint64(2**64 - 1), 2**64 - 1),
    "stop": (np.str_("end"), "end"),
    "stop_token_ids": (np.array([3, 4]), [3, 4]),
    "ignore_eos": (np.bool_(True), True),
    "max_tokens": (np.int64(3), 3),
    "min_tokens": (np.int64(1), 1),
    "logprobs": (np.int8(1), 1),
    "prompt_logprobs": (np.int64(0), 0),
    "truncate_prompt_tokens": (np.int64(4), 4),
    "bad_words": ([np.array([5, 6])], [[5, 6]]),
    "logit_bias": ({np.int64(7): np.float32(1.5)}, {7: 1.5}),
    "allowed_token_ids": ([np.int64(5), 6], [5, 6]),
    "extra_args": ({"specdec": {"num_speculative_tokens": np.int64(2)}}, {"specdec": {"num_speculative_tokens": 2}}),
}


@pytest.mark.parametrize("name", NUMPY)
def test_a_value_of_numpy_counts_as_pythons(name: str) -> None:
    given, expected = NUMPY[name]
    found = getattr(SamplingParams(**{name: given}), name)
    assert found == expected and type(found) is type(expected)


def test_a_form_takes_values_of_numpy_too() -> None:
    form = StructuredOutputsParams(choice=np.array(["a", "b"]), start_after=np.int64(3))
    assert form.choice == ["a", "b"] and form.start_after == 3


def test_values_without_numpy_are_not_copied() -> None:
    given = {"a": [1, (2, "x")], "b": {"c": None}}
    assert plain(given) is given


def test_numbers_of_numpy_in_a_configuration_and_in_limits() -> None:
    config = {"method": "ngram", "num_speculative_tokens": np.int64(3), "prompt_lookup_max": np.int32(2)}
    with LLM(hf_model=target("llama"), speculative_config=config, max_model_len=np.int64(64), seed=np.int32(3)) as llm:
        assert llm.resolved_config is not None and llm.resolved_config.num_speculative_tokens == 3
        assert llm.max_model_len == 64


@pytest.mark.parametrize("seed", [-1, -5, 2**64, 2**70, 1.5, True, "1"])
def test_a_seed_that_is_no_64_bit_number_is_refused_by_name(seed: Any) -> None:
    with pytest.raises(RequestError, match="seed"):
        SamplingParams(seed=seed)
    with pytest.raises(TargetError, match="seed"):
        LLM(hf_model=target("llama"), seed=seed)


def test_seeds_at_both_ends_are_different_noise() -> None:
    with LLM(hf_model=target("llama")) as llm:
        texts = [
            llm.generate({"prompt_token_ids": [5, 6]}, SamplingParams(seed=seed, max_tokens=12, ignore_eos=True))
            for seed in (0, 1, 2**64 - 1)
        ]
    assert len({tuple(text[0].outputs[0].token_ids) for text in texts}) == 3


def test_nothing_to_emit_needs_something_to_score() -> None:
    with pytest.raises(RequestError, match=r"max_tokens=0 is not .* prompt_logprobs"):
        SamplingParams(max_tokens=0)


@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("width", [None, 4])
def test_a_prompt_is_scored_without_emitting_anything(speculative: bool, width: int | None) -> None:
    texts = prompts((1, 300, 17))
    config = {"method": "fixed", "num_speculative_tokens": 3} if speculative else None
    model = target("llama")
    with LLM(
        hf_model=model, speculative_config=config, plugins={"fixed": stub_plugin(Fixed([5, 5, 6]))}, decode_width=width
    ) as llm:
        one = SamplingParams(max_tokens=1, prompt_logprobs=1, temperature=0.0)
        none = SamplingParams(max_tokens=0, prompt_logprobs=1, n=2)
        mixed = llm.generate([*texts, texts[2]], [none, none, none, one])
        plain_outputs = llm.generate(texts, one)
        streamed = list(llm.stream(texts[2], none))
    for output, expected in zip(mixed[:3], plain_outputs, strict=True):
        assert output.finished and ids_of([output]) == [[[], []]]
        assert [sample.finish_reason for sample in output.outputs] == ["length", "length"]
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        for mine, theirs in zip(output.prompt_logprobs[1:], expected.prompt_logprobs[1:], strict=True):
            assert {t: e.logprob for t, e in mine.items()} == pytest.approx(
                {t: e.logprob for t, e in theirs.items()}, abs=1e-4
            )
    assert streamed[-1].finished and streamed[-1].prompt_logprobs is not None


def test_a_scored_prompt_may_fill_the_whole_context() -> None:
    with LLM(hf_model=target("llama"), max_model_len=32) as llm:
        text = {"prompt_token_ids": list(range(3, 35))}
        output = llm.generate(text, SamplingParams(max_tokens=0, prompt_logprobs=0))[0]
        assert len(output.prompt_logprobs) == 32
        with pytest.raises(RequestError, match="32 are all that fit"):
            llm.generate(text, SamplingParams(max_tokens=1))
