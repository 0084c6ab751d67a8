"""A git-lfs pointer, an adapter's folder: named for what they are, as model and as draft; a .gguf file drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_file import write_gguf
from words import tiny_tokenizer

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, TargetError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource, TargetInfo
from specdec_engine import LLM, SamplingParams
from specdec_testing.targets import tiny_target

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
INFO = TargetInfo(model=None, hf_config={}, vocab_size=128, hidden_size=32, num_layers=2, max_model_len=64)


def drafting(model: Path, method: str = "draft_model") -> Any:
    keys = {"method": method, "model": str(model), "num_speculative_tokens": 2}
    return resolve(keys, INFO, Registry(Catalog.discover()))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json"])
def test_a_pointer_of_git_lfs_is_named_with_the_file_and_the_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 32}))
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(TargetError, match=rf"{name} is a git-lfs pointer.*git lfs pull"):
        LLM(tmp_path)
    with pytest.raises(ConfigError, match=rf"{name} is a git-lfs pointer.*git lfs pull"):
        drafting(tmp_path, "eagle")


def test_an_adapters_folder_is_named_with_the_model_that_it_is_for(tmp_path: Path) -> None:
    settings = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    said = "LORA adapter for 'org/base'.*merge_and_unload"
    with pytest.raises(TargetError, match=said):
        LLM(tmp_path)
    for method in ("draft_model", "eagle"):
        with pytest.raises(ConfigError, match=said):
            drafting(tmp_path, method)


def test_a_gguf_file_drafts_and_its_figures_are_those_of_the_model_inside(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    file = tmp_path / "tiny.gguf"
    write_gguf(file, model, tokenizer)
    info, config = TargetInfo.from_folder(file), model.config
    assert (info.vocab_size, info.hidden_size) == (config.vocab_size, config.hidden_size)
    assert (info.num_layers, info.max_model_len) == (config.num_hidden_layers, config.max_position_embeddings)
    assert DraftSource(file).tensor_shapes["output.weight"] == (config.vocab_size, config.hidden_size)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(hf_model=model, tokenizer=tokenizer) as plain:
        wanted = plain.generate(["the cat sat"], params)[0].outputs[0].token_ids
    keys = {"method": "draft_model", "model": str(file), "num_speculative_tokens": 3}
    with LLM(hf_model=model, tokenizer=tokenizer, speculative_config=keys, strict=True) as llm:
        assert llm.generate(["the cat sat"], params)[0].outputs[0].token_ids == wanted
        assert llm.get_metrics().accepted > 5
