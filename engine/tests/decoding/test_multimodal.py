"""Models of text and images: their language model runs with drafts, and prompts with more than text are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import ids_of, params, prompts, run, stubs

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_testing.families import MULTIMODAL
from specdec_testing.targets import tiny_target

FUSED = ("gemma3_vl", "qwen2_5_vl", "qwen3_vl", "mistral3", "llava")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}


def text_of(model: Any, ids: list[int], count: int) -> list[int]:
    """Greedy decoding by the model itself, which finds positions of its own: one whole forward a token."""
    ids = list(ids)
    model.set_attn_implementation("eager")
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[-count:]


@pytest.mark.parametrize("family", MULTIMODAL)
def test_the_language_model_of_a_multimodal_one_decodes_as_transformers_does_with_and_without_drafts(
    family: str,
) -> None:
    """With three axes of positions, too: those of text are equal, so it is plain rotary embedding."""
    model, texts = tiny_target(family), prompts((3, 40, 21))
    plain = run(model, texts, params(3), prefill_chunk_size=16)
    for text, result in zip(texts, plain, strict=True):
        assert result.outputs[0].token_ids == text_of(model, text["prompt_token_ids"], 20)
    for stub in stubs(texts, plain).values():
        assert ids_of(run(model, texts, params(3), stub, prefill_chunk_size=16)) == ids_of(plain)


@pytest.mark.parametrize("family", FUSED)
def test_its_layers_run_in_the_fused_pass_or_through_its_modules_with_the_same_text(family: str) -> None:
    model, texts = tiny_target(family), prompts((3, 40))
    with LLM(hf_model=model) as llm:
        assert llm._engine.target.flat.fused is not None
        fused = llm.generate(texts, params(2))
    assert ids_of(fused) == ids_of(run(model, texts, params(2), fused=False))


@pytest.mark.parametrize("family", MULTIMODAL)
def test_a_folder_of_one_is_loaded_whole_and_its_states_are_those_of_its_language_model(
    family: str, tmp_path: Path
) -> None:
    model, texts = tiny_target(family), prompts((3, 40))
    model.save_pretrained(tmp_path)
    with LLM(str(tmp_path), NGRAM, strict=True) as llm:
        assert type(llm.model) is type(model)
        found = llm.generate(texts, params(2))
        assert llm.get_metrics().drafted > 0
        target = llm._engine.target
        target.tap(hidden=True, aux_layers=(0, 2))
        llm.generate(texts[0], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
        assert target._final is not None
        ids = torch.tensor([texts[0]["prompt_token_ids"]])
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            own = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(target._final, own, atol=1e-4, rtol=1e-4)
    assert ids_of(found) == ids_of(run(model, texts, params(2)))


@pytest.mark.parametrize("key", ["multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs"])
def test_a_prompt_with_images_is_refused_by_the_key_and_nothing_is_queued_row_96(key: str) -> None:
    with LLM(hf_model=tiny_target("llava")) as llm:
        good = {"prompt_token_ids": [5, 6, 7]}
        with pytest.raises(RequestError, match=rf"prompt 1 has {key} \(image\); prompts are text or ids here"):
            llm.generate([good, {**good, key: {"image": object()}}], params(2))
        assert not llm._engine.scheduler.waiting and not llm._engine.scheduler.running
        empty = {**good, key: None, "multi_modal_data": {}}
        assert ids_of(llm.generate(empty, params(1)[0])) == ids_of(llm.generate(good, params(1)[0]))


def test_placeholders_of_images_in_a_prompt_are_ids_like_others_where_the_embedding_has_them_row_96() -> None:
    """Those beyond it are refused, as any other id is; lookups may copy none of what the target would not read."""
    model = tiny_target("llava")
    ids = [5, 120, 6, 120, 7, 5, 120]
    found = run(model, [{"prompt_token_ids": ids}], params(1), config=NGRAM)
    assert found[0].outputs[0].token_ids == text_of(model, ids, 20)
    model = tiny_target("gemma3_vl")
    assert model.config.image_token_index == 128
    with LLM(hf_model=model, speculative_config=NGRAM) as llm:
        with pytest.raises(RequestError, match=r"has the id 128, outside the model's vocabulary 0\.\.127"):
            llm.generate([5, 128, 6], params(1)[0])
