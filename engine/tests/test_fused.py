"""The fused pass in the engine: the tokens that the modules give, for families that have it and those that do not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers
from fused_families import FUSED
from runs import ids_of, params, prompts, run

from specdec_core.errors import TargetError
from specdec_engine import LLM
from specdec_testing.families import RIGHT, SIMILAR
from specdec_testing.stubs import Garbage
from specdec_testing.targets import tiny_config, tiny_target

pytest.importorskip("numba")

LENGTHS = (3, 40, 21)
REASONS = {
    "gpt2": "has drop, h, ln_f, wpe, wte",
    "deepseek_v3": "lacks k_proj, q_proj, v_proj",
    "phi3": "has resid_attn_dropout",
    "olmo2": "lacks input_layernorm",
    "helium": "the input of layer 1 differs",
    "ernie4_5": "the input of layer 1 differs",
    "starcoder2": "has act, c_fc, c_proj",
}


def is_fused(model: Any, **arguments: Any) -> bool:
    with LLM(hf_model=model, **arguments) as llm:
        return llm._engine.target.flat.fused is not None


@pytest.mark.parametrize("family", [*RIGHT, *SIMILAR])
def test_a_target_gives_the_same_tokens_with_and_without_the_fused_pass(family: str) -> None:
    model, texts = tiny_target(family), prompts(LENGTHS)
    assert is_fused(model) == (family in FUSED)
    by_modules = run(model, texts, params(3), Garbage(128), prefill_chunk_size=16, fused=False)
    fused = run(model, texts, params(3), Garbage(128), prefill_chunk_size=16)
    plain = run(model, texts, params(3))
    assert ids_of(fused) == ids_of(by_modules) == ids_of(plain)


@pytest.mark.parametrize("family", sorted(FUSED))
def test_drafts_change_no_token_in_bfloat16_at_a_fixed_width(family: str) -> None:
    model, texts = tiny_target(family, dtype=torch.bfloat16), prompts(LENGTHS)
    sampling = params(3, temperature=0.9)
    assert is_fused(model, decode_width=6)
    plain = run(model, texts, sampling, decode_width=6)
    assert ids_of(run(model, texts, sampling, Garbage(128), decode_width=6)) == ids_of(plain)


@pytest.mark.parametrize("family", sorted(REASONS))
def test_why_a_family_runs_through_its_modules_is_logged_once_and_kept(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "specdec_nn.fused"), LLM(hf_model=tiny_target(family)) as llm:
        assert REASONS[family] in (llm.unfused or "")
    lines = [record.message for record in caplog.records if record.name == "specdec_nn.fused"]
    assert len(lines) == 1
    assert REASONS[family] in lines[0]


def test_it_can_be_switched_off_and_nothing_but_true_and_false_is_taken() -> None:
    model = tiny_target("llama")
    with LLM(hf_model=model) as fused, LLM(hf_model=model, fused=False) as other:
        assert (fused.unfused, other.unfused) == (None, "the fused pass was not asked for")
    with pytest.raises(TargetError, match="fused='no'"):
        LLM(hf_model=model, fused="no")  # type: ignore[arg-type]


def test_a_factor_that_grows_with_the_position_is_found_by_the_trial() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    rope |= {"llama_4_scaling_beta": 0.5}
    config = tiny_config("mistral").to_dict()
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    known = {name: config[name] for name in (*sizes, "num_key_value_heads", "head_dim")}
    made = transformers.Ministral3Config(**known, rope_parameters=rope, max_position_embeddings=128)
    torch.manual_seed(0)
    assert not is_fused(transformers.AutoModelForCausalLM.from_config(made).eval())


def test_a_hook_set_after_loading_is_called_and_the_model_then_runs_through_its_modules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, text = tiny_target("llama"), prompts((9,))
    calls: list[int] = []
    with LLM(hf_model=model) as llm, caplog.at_level(logging.WARNING, "specdec_nn.fused"):
        before = llm.generate(text, params(1))
        hook = model.model.layers[1].mlp.register_forward_hook(lambda *_: calls.append(1))
        assert ids_of(llm.generate(text, params(1))) == ids_of(before)
        assert len(calls) >= 20
        hook.remove()
        calls.clear()
        llm.generate(text, params(1))
    assert not calls
    lines = [record.message for record in caplog.records if record.name == "specdec_nn.fused"]
    assert len(lines) == 1
    assert "layers.1.mlp (LlamaMLP) has a hook" in lines[0]


def test_an_adapter_put_in_after_loading_takes_effect() -> None:
    class Doubled(torch.nn.Module):
        def __init__(self, base: torch.nn.Module) -> None:
            super().__init__()
            self.base_layer = base

        def forward(self, x: Any) -> Any:
            return 2 * self.base_layer(x)

    model, text = tiny_target("llama"), prompts((9,))
    with LLM(hf_model=model) as llm:
        before = llm.generate(text, params(1))
        model.model.layers[0].self_attn.v_proj = Doubled(model.model.layers[0].self_attn.v_proj)
        after = llm.generate(text, params(1))
    assert ids_of(after) != ids_of(before)
    assert ids_of(after) == ids_of(run(model, text, params(1), fused=False))
