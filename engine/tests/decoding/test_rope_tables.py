"""Rotary tables that depend on the length: each request has its own, whoever runs beside it and however it runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from runs import ids_of, params, prompts, run, stubs
from transformers import DynamicCache

from specdec_core.errors import TargetError
from specdec_engine import LLM
from specdec_testing.stubs import Garbage, Perfect
from specdec_testing.targets import tiny_target

SWITCH, LONGEST, COUNT = 48, 160, 40
# Prompts that stay below the switch, cross it at their end, right behind it and later, and begin beyond it.
LENGTHS = (3, 48, 47, 20, 49, 90, 30)
TEXTS = prompts(LENGTHS, seed=4)
KINDS = ("longrope", "phi3", "dynamic")


def model_of(kind: str) -> Any:
    """A new model: transformers keeps the tables of the longest text that one has seen."""
    rope: dict[str, Any] = {"rope_type": "dynamic" if kind == "dynamic" else "longrope", "rope_theta": 1e4}
    if kind == "dynamic":
        return tiny_target("llama", rope_parameters={**rope, "factor": 4.0}, max_position_embeddings=SWITCH)
    rope |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    rope["original_max_position_embeddings"] = SWITCH
    sizes = {"max_position_embeddings": LONGEST, "original_max_position_embeddings": SWITCH}
    return tiny_target("phi3" if kind == "phi3" else "llama", rope_parameters=rope, **sizes)


def whole(model: Any, ids: list[int], count: int) -> list[int]:
    """One forward of the whole text a token."""
    ids = list(ids)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[-count:]


def cached(model: Any, ids: list[int], count: int) -> list[int]:
    """One forward of the prompt, and one of each newest id, with the keys that were written before."""
    cache, out, new = DynamicCache(config=model.config), list(ids), list(ids)
    for _ in range(count):
        with torch.inference_mode():
            logits = model(torch.tensor([new]), past_key_values=cache, use_cache=True).logits[0, -1]
        new = [int(logits.argmax())]
        out += new
    return out[-count:]


@cache
def wanted(kind: str) -> list[list[list[int]]]:
    """What transformers says of each prompt, alone, by a model that has seen no other."""
    texts = []
    for text in TEXTS:
        model, ids = model_of(kind), text["prompt_token_ids"]
        model.set_attn_implementation("eager")
        texts.append([(cached if kind == "dynamic" else whole)(model, ids, COUNT)])
    return texts


def says(kind: str, stub: Any = None, **keys: Any) -> list[list[list[int]]]:
    sampling = params(len(TEXTS), max_tokens=COUNT)
    return ids_of(run(model_of(kind), TEXTS, sampling, stub, max_model_len=LONGEST, **keys))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_across_the_switch_says_what_transformers_says_of_each_prompt_alone(kind: str) -> None:
    assert says(kind) == wanted(kind)
    assert says(kind, fused=False, prefill_chunk_size=7) == wanted(kind)


def test_the_rule_of_longrope_is_that_of_transformers_generate_without_a_cache() -> None:
    """With one, Phi-3's drops it at the switch in order to compute it anew."""
    for text, (ids,) in zip(TEXTS, wanted("phi3"), strict=True):
        given = torch.tensor([text["prompt_token_ids"]])
        keys = {
            "max_new_tokens": COUNT,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
            "use_cache": False,
        }
        assert model_of("phi3").generate(given, **keys)[0, given.shape[1] :].tolist() == ids


def test_prompts_are_decided_by_their_tables() -> None:
    """Or these tests would show nothing: with the short table alone most texts are others."""
    for kind in ("longrope", "dynamic"):
        short = tiny_target("llama", max_position_embeddings=LONGEST)
        other = [[whole(short, text["prompt_token_ids"], COUNT)] for text in TEXTS]
        assert sum(a != b for a, b in zip(other, wanted(kind), strict=True)) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_of_all_kinds_keep_the_text_across_the_switch(kind: str, k: int) -> None:
    plain = run(model_of(kind), TEXTS, params(len(TEXTS), max_tokens=COUNT), max_model_len=LONGEST)
    for name, stub in stubs(TEXTS, plain).items():
        assert says(kind, stub, k=k) == wanted(kind), name


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_preempted_requests_run_again_with_the_tables_that_they_had(kind: str) -> None:
    keys = {"kv_cache_tokens": 320, "max_num_seqs": 4}
    sampling = params(len(TEXTS), max_tokens=COUNT)
    for stub in (None, Garbage(128)):
        config: Any = None if stub is None else {"config": {"num_speculative_tokens": 4}}
        assert says(kind, stub, **keys, **(config or {})) == wanted(kind)
    with LLM(hf_model=model_of(kind), max_model_len=LONGEST, **keys) as llm:
        assert ids_of(llm.generate(TEXTS, sampling)) == wanted(kind)
        assert llm._engine.scheduler.preemptions > 0


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_reused_prefix_is_one_of_the_same_tables(kind: str) -> None:
    """The same first ids in texts that end below, cross and begin beyond the switch, one after the other and again."""
    first = TEXTS[5]["prompt_token_ids"]
    texts = [{"prompt_token_ids": first[:n]} for n in (90, 40, 70, 48, 90, 33, 70)]
    alone = []
    for text in texts:
        model = model_of(kind)
        model.set_attn_implementation("eager")
        alone.append([(cached if kind == "dynamic" else whole)(model, text["prompt_token_ids"], COUNT)])
    with LLM(hf_model=model_of(kind), max_model_len=LONGEST) as llm:
        found = [llm.generate(text, params(1, max_tokens=COUNT)[0])[0] for text in texts]
        assert ids_of(found) == alone
        assert found[4].num_cached_tokens > 0
        assert found[6].num_cached_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_a_fixed_width_drafts_change_no_bit_in_bfloat16(kind: str, temperature: float) -> None:
    model = model_of(kind).to(torch.bfloat16)
    sampling = params(len(TEXTS), temperature, max_tokens=COUNT)
    keys: dict[str, Any] = {"decode_width": 8, "max_model_len": LONGEST, "prefill_chunk_size": 16}
    plain = run(model, TEXTS, sampling, **keys)
    for stub in (Perfect.of_run(TEXTS, plain), Garbage(128)):
        assert ids_of(run(model, TEXTS, sampling, stub, **keys)) == ids_of(plain)
    assert ids_of(run(model, TEXTS, sampling, kv_cache_tokens=320, **keys)) == ids_of(plain)


def test_a_callers_model_has_its_own_tables_again() -> None:
    model = model_of("longrope")
    rotary = model.model.rotary_emb
    before = (rotary.inv_freq.clone(), set(rotary.__dict__))
    run(model, TEXTS, params(len(TEXTS), max_tokens=COUNT), max_model_len=LONGEST)
    assert torch.equal(rotary.inv_freq, before[0])
    assert set(rotary.__dict__) == before[1]


def test_a_dynamic_table_lets_texts_be_as_long_as_its_factor_says() -> None:
    with LLM(hf_model=model_of("dynamic")) as llm:
        assert llm.max_model_len == SWITCH
    with LLM(hf_model=model_of("dynamic"), max_model_len=4 * SWITCH) as llm:
        assert llm.max_model_len == 4 * SWITCH
    with pytest.raises(TargetError, match=f"above the model's own limit of {4 * SWITCH} positions"):
        LLM(hf_model=model_of("dynamic"), max_model_len=4 * SWITCH + 1)
