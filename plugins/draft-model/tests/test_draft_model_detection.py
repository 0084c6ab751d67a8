"""Which checkpoints are claimed, and how strongly: by config.json and tensors, never by where they lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_model_folders import draft, patch
from safetensors.torch import save_file

from specdec_core.config.detect import detect as detect_among_all
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource
from specdec_plugin_draft_model.detection import detect


def checkpoint(folder: Path, config: dict[str, Any], *tensors: str) -> DraftSource:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file({name: torch.zeros(2, 2) for name in tensors}, folder / "model.safetensors")
    return DraftSource(str(folder))


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128, "hidden_size": 32}
WEIGHTS = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize(("family", "said"), [("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel")])
def test_a_whole_language_model_is_possible_with_evidence(family: str, said: str, tmp_path: Path) -> None:
    found = detect(DraftSource(draft(tmp_path / "d", family)))
    assert found is not None
    assert (found.method, found.strength) == ("draft_model", "possible")
    assert said in found.evidence[0]


def test_pard_is_certain_by_its_type_and_likely_by_its_token(tmp_path: Path) -> None:
    model = patch(draft(tmp_path / "d"), pard_token=100)
    found = detect(DraftSource(model))
    assert found is not None
    assert (found.strength, found.evidence[0]) == ("likely", "pard_token 100")
    found = detect(DraftSource(patch(model, spd_type="pard")))
    assert found is not None
    assert (found.strength, found.evidence[:2]) == ("certain", ("spd_type 'pard'", "pard_token 100"))


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["EagleLlamaForCausalLM"]},
        {"architectures": ["Eagle3LlamaForCausalLM"]},
        {"architectures": ["PeagleLlamaForCausalLM"], "pard_token": 5},
        {"model_type": "eagle"},
        {"model_type": "medusa", "architectures": ["MedusaModel"]},
        {"medusa_num_heads": 4},
        {"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"]},
        {"architectures": ["DFlashDraftModel"]},
        {"architectures": ["Qwen3ForCausalLM"], "dflash_config": {"mask_token_id": 3}},
        {"architectures": ["DSparkDraftModel"]},
        {"model_type": "deepseek_mtp", "architectures": ["DeepSeekMTPModel"]},
        {"architectures": ["MiMoMTPForCausalLM"]},
        {"speculators_model_type": "eagle3"},
        {"draft_vocab_size": 32},
        {"architectures": []},
        {"architectures": ["LlamaForSequenceClassification"]},
    ],
    ids=str,
)
def test_drafters_of_other_methods_and_other_models_are_never_claimed(config: dict[str, Any], tmp_path: Path) -> None:
    assert detect(checkpoint(tmp_path / "c", {**LLAMA, **config}, *WEIGHTS)) is None
    assert detect(checkpoint(tmp_path / "plain", LLAMA, *WEIGHTS)) is not None


@pytest.mark.parametrize("tensor", ["fc.weight", "model.fc.weight", "d2t", "mask_hidden"])
def test_heads_that_call_themselves_language_models_are_told_by_their_tensors(tensor: str, tmp_path: Path) -> None:
    assert detect(checkpoint(tmp_path / "c", LLAMA, *WEIGHTS, tensor)) is None


def test_a_checkpoint_without_weights_or_that_cannot_be_read_is_not_claimed(tmp_path: Path) -> None:
    assert detect(checkpoint(tmp_path / "c", LLAMA)) is None
    source = checkpoint(tmp_path / "broken", LLAMA)
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no tensors")
    assert detect(source) is None


def test_a_folder_that_is_named_after_another_method_is_what_it_holds_rows_65_and_68(tmp_path: Path) -> None:
    for name in ("eagle-run", "medusa-heads", "dflash", "EAGLE3-x"):
        record, evidence = detect_among_all(DraftSource(draft(tmp_path / name)), Registry(Catalog.discover()))
        assert record.name == "draft_model"
        assert name not in evidence
