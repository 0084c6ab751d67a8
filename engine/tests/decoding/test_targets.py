"""Which targets run: right families pass the probe, silently wrong ones are refused with their reason."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from runs import ids_of, params, prompts, run

from specdec_core.errors import TargetError
from specdec_engine import LLM
from specdec_testing.families import HYBRID
from specdec_testing.stubs import Garbage
from specdec_testing.targets import tiny_target

RIGHT = ("llama", "gpt2", "qwen3", "gemma3", "mistral", "gpt_oss", "gemma2", "opt", "phi", "deepseek_v3")
# Their attention goes through the interface from transformers 5.24 on.
SINCE_5_24 = ("gptj", "codegen")
NEW = Version(transformers.__version__) >= Version("5.24")
WRONG = {
    "gpt_neo": "attention interface",
    "bloom": "attention interface",
    "falcon": "attention interface",
    "mpt": "attention interface",
    "xglm": "attention interface",
    "llama4": "chunked_attention",
    "diffllama": "2 times",
    "kimi_linear": "KimiLinearDeltaAttention in layer 0 is the first that differs",
}


RIGHT_HERE = (*RIGHT, *SINCE_5_24) if NEW else RIGHT
WRONG_HERE = WRONG if NEW else {**WRONG, **dict.fromkeys(SINCE_5_24, "attention interface")}


def first_tokens(model: Any, ids: list[int], count: int) -> list[int]:
    """Greedy decoding by the model itself: one whole forward a token, as transformers runs it."""
    ids = list(ids)
    model.set_attn_implementation("eager")
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[-count:]


@pytest.mark.parametrize("family", [*RIGHT_HERE, *HYBRID])
def test_a_right_family_passes_the_probe_and_decodes_as_transformers_does(family: str) -> None:
    model = tiny_target(family)
    texts = prompts((3, 40, 21))
    results = run(model, texts, params(3), Garbage(128), prefill_chunk_size=16)
    for text, result in zip(texts, results, strict=True):
        assert result.outputs[0].token_ids == first_tokens(model, text["prompt_token_ids"], 20)


@pytest.mark.parametrize("family", WRONG_HERE)
def test_a_silently_wrong_family_is_refused_with_its_reason(family: str) -> None:
    with pytest.raises(TargetError, match=re.escape(WRONG_HERE[family])):
        LLM(hf_model=tiny_target(family))


def test_without_the_probe_diffllama_would_be_wrong_so_the_probe_is_what_refuses_it(monkeypatch: Any) -> None:
    from specdec_engine import build

    monkeypatch.setattr(build, "probe", lambda target: 64)
    model, texts = tiny_target("diffllama"), prompts((12,))
    result = run(model, texts, params(1))[0]
    assert result.outputs[0].token_ids != first_tokens(model, texts[0]["prompt_token_ids"], 20)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_tables_that_no_row_can_choose_are_refused_above_their_switch_and_run_below(rope_type: str) -> None:
    """Here those of code that keeps no table to go back to."""
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 2.0}
    rope["original_max_position_embeddings"] = 64
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = tiny_target("llama", rope_parameters=rope, max_position_embeddings=128)
    text = prompts((9,))[0]
    wanted = first_tokens(model, text["prompt_token_ids"], 20)
    rotary = model.model.rotary_emb
    del rotary.original_inv_freq
    type(rotary).forward, kept = inspect.unwrap(type(rotary).forward), type(rotary).forward
    try:
        with pytest.raises(TargetError, match=f"{rope_type}.*max_model_len to at most 64"):
            LLM(hf_model=model)
        with LLM(hf_model=model, max_model_len=64) as llm:
            assert llm.generate(text, params(1)[0])[0].outputs[0].token_ids == wanted
    finally:
        type(rotary).forward = kept


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_callers_model_is_given_back_as_it_was(implementation: str) -> None:
    model = tiny_target("llama")
    model.set_attn_implementation(implementation)
    before = model(torch.tensor([[5, 6, 7]])).logits
    marks = [dict(module.__dict__) for module in model.modules()]
    with LLM(hf_model=model) as llm:
        llm.generate([5, 6, 7], params(1)[0])
        assert model.config._attn_implementation == implementation, "between calls, too"
        assert torch.equal(model(torch.tensor([[5, 6, 7]])).logits, before)
    assert model.config._attn_implementation == implementation
    assert [set(module.__dict__) for module in model.modules()] == [set(mark) for mark in marks]
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_two_engines_share_a_model_and_its_packed_weights() -> None:
    from specdec_nn.hf.binding import _PACKED

    model, texts = tiny_target("llama"), prompts((9, 20))
    with LLM(hf_model=model) as one, LLM(hf_model=model) as two:
        packs = {id(_PACKED[m][1]()) for m in model.modules() if m in _PACKED}
        stream = one.stream(texts[0], params(1)[0])
        next(stream)
        second = two.generate(texts, params(2))
        first = list(stream)[-1]
        assert ids_of([first]) == ids_of(second[:1])
        assert packs == {id(_PACKED[m][1]()) for m in model.modules() if m in _PACKED} and packs


def test_written_weights_are_packed_anew() -> None:
    model, text = tiny_target("llama"), prompts((9,))[0]
    with LLM(hf_model=model) as llm:
        llm.generate(text, params(1)[0])
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    with LLM(hf_model=model) as llm:
        after = llm.generate(text, params(1)[0])
    assert after[0].outputs[0].token_ids == first_tokens(model, text["prompt_token_ids"], 20)


def test_tied_and_softcapped_heads_are_honoured_by_compute_logits() -> None:
    model = tiny_target("gemma2")
    with LLM(hf_model=model) as llm, torch.inference_mode():
        out = model(torch.tensor([[5, 6, 7, 8]]), output_hidden_states=True)
        logits = llm._engine.target.compute_logits(out.hidden_states[-1][0])
        torch.testing.assert_close(logits, out.logits[0])
