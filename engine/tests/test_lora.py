"""LoRA: one adapter for all requests, merged into the weights; what it says is what peft's own forward says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import ids_of, params, prompts, run, stubs
from safetensors.torch import load_file, save_file

from specdec_core.draft import BatchView, Draft
from specdec_core.errors import RequestError, TargetError
from specdec_engine import LLM
from specdec_testing.targets import tiny_target

peft = pytest.importorskip("peft")

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def base(tmp_path: Path) -> str:
    tiny_target("llama").save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


def adapted(family: str = "llama", **config: Any) -> Any:
    """Return peft's model with an adapter of rank 2 that changes texts."""
    wanted = {"target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"], "task_type": "CAUSAL_LM", **config}
    model = peft.get_peft_model(tiny_target(family), peft.LoraConfig(r=2, lora_alpha=8, **wanted))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def saved(folder: Path, **config: Any) -> str:
    adapted(**config).save_pretrained(folder, save_embedding_layers=False)
    return str(folder)


def text_of(model: Any, ids: list[int], count: int = 20) -> list[int]:
    """Greedy decoding by a model itself: one whole forward a token."""
    ids = list(ids)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[-count:]


@pytest.mark.parametrize("config", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_the_text_with_an_adapter_is_that_of_pefts_own_forward_with_and_without_drafts_row_95(
    config: dict[str, Any], base: str, tmp_path: Path
) -> None:
    """Every verified row is adapted, in the fused pass as well."""
    adapter, texts = saved(tmp_path / "adapter", **config), prompts((3, 40, 21))
    theirs = [text_of(adapted(**config), text["prompt_token_ids"]) for text in texts]
    with LLM(base, lora=adapter) as llm:
        assert llm._engine.target.flat.fused is not None
        assert ids_of(llm.generate(texts, params(3))) == [[ids] for ids in theirs]
    with LLM(base, NGRAM, lora=adapter, strict=True) as llm:
        assert ids_of(llm.generate(texts, params(3))) == [[ids] for ids in theirs]
        assert llm.get_metrics().drafted > 0
    with LLM(base) as llm:
        assert ids_of(llm.generate(texts, params(3))) != [[ids] for ids in theirs]


def test_the_head_that_drafters_share_is_the_targets_and_its_logits_are_pefts(base: str, tmp_path: Path) -> None:
    ids = torch.tensor([prompts((20,))[0]["prompt_token_ids"]])
    with LLM(base, lora=saved(tmp_path / "adapter"), fused=False) as llm, torch.inference_mode():
        mine = llm.model(input_ids=ids, use_cache=False).logits
        theirs = adapted()(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_a_draft_model_is_not_adapted_row_95(base: str, tmp_path: Path) -> None:
    adapter, text = saved(tmp_path / "adapter"), prompts((12,))[0]
    keys = {"method": "draft_model", "model": base, "num_speculative_tokens": 3}
    seen: list[tuple[list[int], list[int]]] = []
    with LLM(base, keys, lora=adapter, strict=True) as llm:
        assert llm._engine.runner is not None
        inner = llm._engine.runner._proposer
        propose = inner.propose

        def watched(batch: BatchView) -> Draft:
            draft: Draft = propose(batch)
            if len(draft.tokens):
                seen.append((batch.requests[0].tokens.tolist(), draft.tokens.tolist()))
            return draft

        inner.propose = watched  # type: ignore[method-assign]
        found = llm.generate(text, params(1)[0])
    assert ids_of(found) == [[text_of(adapted(), text["prompt_token_ids"])]]
    assert len(seen) > 5
    model = tiny_target("llama")
    assert all(drafts == text_of(model, known, len(drafts)) for known, drafts in seen)


def test_all_kinds_of_drafts_keep_the_text_of_a_loaded_model_with_an_adapter_beside_its_weights() -> None:
    """A model that the caller has adapted runs as it is, unmerged, through its modules."""
    model, texts = adapted(), prompts((3, 40))
    plain = run(model, texts, params(2))
    assert ids_of(plain) == [[text_of(model, text["prompt_token_ids"])] for text in texts]
    for stub in stubs(texts, plain).values():
        assert ids_of(run(model, texts, params(2), stub)) == ids_of(plain)


def test_drawing_weights_for_an_adapter_leaves_the_global_generator_alone(base: str, tmp_path: Path) -> None:
    adapter = saved(tmp_path / "adapter")
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    with LLM(base, lora=adapter):
        assert torch.equal(torch.rand(2), wanted)


# What is refused


def refused(base: str, adapter: str) -> str:
    with pytest.raises(TargetError) as caught:
        LLM(base, lora=adapter)
    return str(caught.value)


def test_an_adapter_for_one_request_is_refused_by_name(base: str) -> None:
    with LLM(base) as llm, pytest.raises(RequestError, match=r"lora_request.*one adapter serves all requests here"):
        llm.generate([5, 6, 7], params(1)[0], lora_request=object())
    with pytest.raises(TargetError, match=r"enable_lora.*name it as lora="):
        LLM(base, enable_lora=True)


def test_a_folder_without_an_adapter_is_refused(base: str) -> None:
    assert "the folder has no adapter_config.json" in refused(base, base)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task_type": "SEQ_CLS"}, "was trained for the task SEQ_CLS; expected CAUSAL_LM"),
        ({"alora_invocation_tokens": [1, 2]}, "begins at certain ids"),
        ({"target_modules": ["nowhere"]}, "does not fit the model"),
        ({"peft_type": "NONE"}, "adapter_config.json cannot be read"),
    ],
)
def test_an_adapter_of_another_kind_is_refused_by_what_it_says(
    change: dict[str, Any], said: str, base: str, tmp_path: Path
) -> None:
    adapter = saved(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    message = refused(base, adapter)
    assert said in message
    assert adapter in message


def test_an_adapter_of_another_type_is_refused_by_its_type(base: str, tmp_path: Path) -> None:
    peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]).save_pretrained(tmp_path)
    assert "is an adapter of type IA3, and only LORA is merged" in refused(base, str(tmp_path))


def test_an_adapter_with_missing_left_over_or_other_tensors_is_refused_by_their_names(
    base: str, tmp_path: Path
) -> None:
    adapter = saved(tmp_path / "adapter")
    file = tmp_path / "adapter" / WEIGHTS
    tensors = load_file(file)
    first = next(name for name in tensors if "lora_A" in name)
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, file)
    assert "lacks 1 of its tensors" in refused(base, adapter)
    save_file({**tensors, first.replace("layers.0", "layers.7"): tensors[first].clone()}, file)
    assert "has no place in the model for 1 of its tensors" in refused(base, adapter)
    save_file({**tensors, first: tensors[first][:, :-1].clone()}, file)
    assert "does not fit the model" in refused(base, adapter)


def test_a_head_that_is_tied_to_the_embedding_is_not_changed_by_half(tmp_path: Path) -> None:
    tied = tiny_target("llama", tie_word_embeddings=True)
    tied.save_pretrained(tmp_path / "tied")
    adapter = saved(tmp_path / "adapter", target_modules=["q_proj", "lm_head"])
    assert "one table for embedding and head" in refused(str(tmp_path / "tied"), adapter)


def test_an_adapter_beside_a_loaded_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="beside hf_model=, whose weights stay as they are"):
        LLM(hf_model=tiny_target("llama"), lora=saved(tmp_path / "adapter"))


def test_without_peft_the_package_is_named(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from specdec_nn.hf import adapters

    monkeypatch.setattr(adapters.importlib.util, "find_spec", lambda name: None)
    assert "needs the package peft: pip install 'specdec-engine[lora]'" in refused(base, "org/adapter")
