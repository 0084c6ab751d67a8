"""Rows of docs/bug-reports.md about MLP speculators: none of these faults is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlp_speculator_checkpoints import TARGET, config, random_weights, resolve_config, save, tensors_of
from mlp_speculator_layouts import LAYOUTS

from specdec_core.errors import ConfigError
from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import random_table, table_target
from specdec_testing.watching import evidence

MTP = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}
LM = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 4}


def test_a_speculator_of_fewer_ids_leaves_the_targets_distribution_row_58(tmp_path: Path) -> None:
    """Its distributions are zero on the ids that it lacks."""
    size, table = 8, random_table(8, seed=58)
    weights = random_weights(3, 6, seed=58, rows=5, width=size)
    model = save(tmp_path / "x", tensors_of(weights), config(emb_dim=size, inner_dim=6, vocab_size=5))
    keys = {"method": "mlp_speculator", "model": model, "draft_sample_method": "probabilistic"}
    sampling = SamplingParams(temperature=1.0, seed=3, n=120, max_tokens=50)
    target = table_target(table, max_position_embeddings=64)
    with LLM(hf_model=target, speculative_config=keys, max_num_seqs=120, strict=True) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [0]}], sampling)
    counts = np.zeros((size, size), np.int64)
    for sample in result.outputs:
        ids = [0, *sample.token_ids]
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    assert result.metrics.accepted > 700
    assert_follows(counts, table)


@pytest.mark.parametrize("keys", [{}, {"n_candidates": 4}, {"draft_sample_method": "probabilistic"}])
def test_padding_of_a_head_is_never_drafted_row_59(keys: dict[str, Any], tmp_path: Path) -> None:
    """The rows above the target's ids have by far the largest logits, one or another of them everywhere."""
    settings = {"method": "mlp_speculator", "model": LAYOUTS["padded"].save(tmp_path / "x"), **keys}
    sampling = SamplingParams(temperature=0.7, seed=1, max_tokens=20, ignore_eos=True)
    with LLM(hf_model=TARGET, speculative_config=settings, strict=True) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling)  # ids out of range would be raised
    assert result.metrics.drafted > 20


@pytest.mark.parametrize(("settings", "kind"), [(MTP, "deepseek_v3"), (LM, "llama")])
def test_a_checkpoint_that_does_not_fit_the_named_method_is_said_to_be_so_with_both_fixes_row_66(
    settings: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    model = save(tmp_path / "x", {"model.layers.0.mlp.up_proj.weight": torch.zeros(2, 2)}, settings)
    said = rf"no MLP speculator.*model_type '{kind}'.*and the method is mlp_speculator"
    with pytest.raises(ConfigError, match=said) as caught:
        resolve_config(model, method="mlp_speculator")
    assert "name the method that this checkpoint is for, or give the checkpoint of" in str(caught.value)


def test_k_defaults_to_n_predict_row_71(tmp_path: Path) -> None:
    resolved = resolve_config(LAYOUTS["plain"].save(tmp_path / "x"))
    assert resolved.num_speculative_tokens == 3
    assert evidence(resolved, "num_speculative_tokens") == "n_predict of the checkpoint, 3"


def test_k_above_n_predict_is_refused_with_n_predict_row_72(tmp_path: Path) -> None:
    said = r"num_speculative_tokens: 4 given, and mlp_speculator drafts at most 3 \(its n_predict\) here"
    with pytest.raises(ConfigError, match=said):
        resolve_config(LAYOUTS["plain"].save(tmp_path / "x"), num_speculative_tokens=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tied, every copy", "tied, stored once", "scaled input", "torch file", "a trainer's spelling"]
)
def test_tied_scaled_and_bin_files_load_and_draft_row_86(name: str, tmp_path: Path) -> None:
    settings = {"method": "mlp_speculator", "model": LAYOUTS[name].save(tmp_path / "x")}
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(hf_model=TARGET, strict=True) as llm:
        (plain,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling)
    with LLM(hf_model=TARGET, speculative_config=settings, strict=True) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling)
    assert result.metrics.drafted > 20
    assert result.outputs[0].token_ids == plain.outputs[0].token_ids
