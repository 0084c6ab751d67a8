"""Faults that users of other engines reported about Medusa: each stays away, by its row in docs/bug-reports.md."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from medusa_checkpoints import (
    OLD_CONFIG,
    TARGET,
    VOCAB,
    built,
    new_config,
    new_tensors,
    old_tensors,
    random_heads,
    resolve_config,
    save,
)
from medusa_layouts import LAYOUTS

from specdec_core.errors import ConfigError
from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import random_table, table_target
from specdec_testing.watching import evidence

MTP = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}
LM = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 4}


@pytest.mark.slow
@pytest.mark.parametrize("tree", [None, "[(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]"])
def test_heads_of_fewer_ids_leave_the_targets_distribution_row_58(tree: str | None, tmp_path: Path) -> None:
    """Their distributions are zero on the ids that they lack, and drawn siblings keep the distribution as well."""
    size, table = 8, random_table(8, seed=58)
    heads = random_heads(3, seed=58, rows=5, width=size)
    model = save(tmp_path / "x", new_tensors(heads), new_config(hidden_size=size, vocab_size=5))
    keys = {} if tree is None else {"speculative_token_tree": tree}
    config = {"method": "medusa", "model": model, "draft_sample_method": "probabilistic", **keys}
    sampling = SamplingParams(temperature=1.0, seed=3, n=120, max_tokens=50)
    target = table_target(table, max_position_embeddings=64)
    with LLM(hf_model=target, speculative_config=config, max_num_seqs=120, strict=True) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [0]}], sampling)
    counts = np.zeros((size, size), np.int64)
    for sample in result.outputs:
        ids = [0, *sample.token_ids]
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    assert result.metrics.accepted > 700
    assert_follows(counts, table)


@pytest.mark.parametrize(
    "keys", [{}, {"speculative_token_tree": "mc_sim_7b_63"}, {"draft_sample_method": "probabilistic"}]
)
def test_padding_of_a_head_is_never_drafted_row_59(keys: dict[str, Any], tmp_path: Path) -> None:
    """The rows above the target's ids have by far the largest logits, one or another of them everywhere."""
    model = LAYOUTS["new, padded"].save(tmp_path / "x")
    sampling = SamplingParams(temperature=0.7, seed=1, max_tokens=20, ignore_eos=True)
    config = {"method": "medusa", "model": model, **keys}
    with LLM(hf_model=TARGET, speculative_config=config, strict=True) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling)  # ids out of range would be raised
    assert result.metrics.drafted > 20


@pytest.mark.parametrize(("settings", "kind"), [(MTP, "deepseek_v3"), (LM, "llama")])
def test_a_checkpoint_that_does_not_fit_the_named_method_is_said_to_be_so_with_both_fixes_row_66(
    settings: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    model = save(tmp_path / "x", {"model.layers.0.mlp.up_proj.weight": torch.zeros(2, 2)}, settings)
    with pytest.raises(ConfigError, match=rf"no Medusa heads.*model_type '{kind}'.*and the method is medusa") as caught:
        resolve_config(model, method="medusa")
    assert "name the method that this checkpoint is for, or give a checkpoint of Medusa heads" in str(caught.value)


def test_k_defaults_to_the_number_of_heads_row_71(tmp_path: Path) -> None:
    resolved = resolve_config(LAYOUTS["new"].save(tmp_path / "x"))
    assert resolved.num_speculative_tokens == 4
    assert evidence(resolved, "num_speculative_tokens") == "n_predict: the tensors have 4 heads"


def test_k_above_the_heads_is_refused_with_their_number_row_72(tmp_path: Path) -> None:
    said = r"num_speculative_tokens: 5 given, and medusa drafts at most 4 \(its n_predict\) here \(give at most 4\)"
    with pytest.raises(ConfigError, match=said):
        resolve_config(LAYOUTS["new"].save(tmp_path / "x"), num_speculative_tokens=5)


def test_the_number_of_heads_is_that_of_the_tensors_with_one_warning_row_85(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = old_tensors(random_heads(5))
    wrong = save(tmp_path / "a", tensors, {**OLD_CONFIG, "medusa_num_heads": 2})
    without = save(tmp_path / "b", tensors, {k: v for k, v in OLD_CONFIG.items() if k != "medusa_num_heads"})
    for model, warnings in ((wrong, 1), (without, 0)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            _, resolved, _ = built(model)
        assert resolved.num_speculative_tokens == 5
        assert len(caplog.records) == warnings
    assert "config.json has medusa_num_heads 2" in evidence(resolve_config(wrong), "num_speculative_tokens")


def test_biases_of_old_heads_count_whatever_the_config_says_of_them(tmp_path: Path) -> None:
    """Without the biases the drafts would be others."""
    heads = random_heads(2, bias=True, seed=6)
    bare = {name: tensor for name, tensor in new_tensors(heads).items() if not name.endswith("bias")}
    settings = new_config(num_heads=2, medusa_fc_bias=False)
    models = [save(tmp_path / name, t, settings) for name, t in (("a", new_tensors(heads)), ("b", bare))]
    state = torch.randn(32, TARGET.config.hidden_size, generator=torch.Generator().manual_seed(0))
    first, second = (built(model)[0]._plan._heads[0](state).argmax(-1) for model in models)
    assert (first != second).float().mean() > 0.2
    assert int(first.max()) < VOCAB
