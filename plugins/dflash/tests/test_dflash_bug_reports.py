"""Rows of docs/bug-reports.md about heads that draft blocks: vocabularies, sizes, spellings, the newest id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dflash_checkpoints as checkpoints
import numpy as np
import pytest
import torch
import transformers
from dflash_layouts import EVERY, LAYOUTS, VOCAB, WIDTH, Layout, flash
from dflash_replay import Wrapped, watched

from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import random_table, table_target
from specdec_testing.targets import tiny_target

LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e6,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def generate(
    model: Any, layout: Layout, folder: Path, sampling: SamplingParams, **options: Any
) -> tuple[list[Any], Any]:
    """Run two prompts and return results and the drafts of each call."""
    config = {"method": layout.method, "model": layout.save(folder), **options}
    with LLM(hf_model=model, speculative_config=config, strict=True) as llm:
        assert llm._engine.runner is not None
        assert llm.resolved_config is not None
        recorder = watched(llm._engine.runner._proposer, llm.resolved_config.traits)
        llm._engine.runner._proposer = recorder
        prompts = [{"prompt_token_ids": list(range(5, n))} for n in (14, 30)]
        results = llm.generate(prompts, sampling)
    assert isinstance(recorder.inner, Wrapped)
    return results, recorder


@pytest.mark.slow
def test_a_head_of_fewer_ids_leaves_the_targets_distribution_row_58(tmp_path: Path) -> None:
    """Its distributions are zero on the ids that it lacks."""
    size, table = 8, random_table(8, seed=58)
    tensors = checkpoints.trunk(size, 2 * size, seed=1) | checkpoints.vocabulary(size, size, 5, seed=1)
    section = {"mask_token_id": 3, "target_layer_ids": [0, 1]}
    settings = checkpoints.config(size, dflash_config=section)
    draft = checkpoints.save(tmp_path / "x", tensors, settings)
    config = {"model": draft, "num_speculative_tokens": 2, "draft_sample_method": "probabilistic"}
    model = table_target(table, num_layers=2, max_position_embeddings=64)
    sampling = SamplingParams(temperature=1.0, seed=3, n=120, max_tokens=50, ignore_eos=True)
    with LLM(hf_model=model, speculative_config=config, strict=True, max_num_seqs=120) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [0]}], sampling)
    counts = np.zeros((size, size), np.int64)
    for sample in result.outputs:
        ids = [0, *sample.token_ids]
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    assert result.metrics.accepted > 700
    assert_follows(counts, table)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"draft_sample_method": "probabilistic"}])
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_padding_of_a_head_is_never_drafted_row_59(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The rows above the target's ids have by far the largest logits, one or another of them everywhere."""
    rows = checkpoints.Weights(59).matrix(VOCAB + 8, WIDTH, 2.0)
    rows[VOCAB:] *= 50
    layout = EVERY[{"dflash": "dflash: standard", "dspark": "dspark: from the anchor"}[method]]
    extra = {"lm_head.weight": rows}
    if method == "dspark":
        extra["markov_head.markov_w2.weight"] = torch.ones(VOCAB + 8, checkpoints.RANK)
    layout = replace(layout, tensors={**layout.tensors, **extra})
    model = tiny_target("llama", num_hidden_layers=8)
    sampling = SamplingParams(temperature=0.7, max_tokens=30, ignore_eos=True, seed=1)
    results, _ = generate(model, layout, tmp_path / "x", sampling, num_speculative_tokens=4, **options)
    assert all(result.metrics.drafted > 20 for result in results)  # ids out of range would be raised


def test_a_map_is_used_though_both_sizes_of_the_head_agree_row_63(tmp_path: Path) -> None:
    """Its vocab_size and draft_vocab_size are the same; what counts is the target's."""
    layout = LAYOUTS["small vocabulary"]
    layout = replace(layout, settings={**layout.settings, "vocab_size": 40})
    sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    model = tiny_target("llama", num_hidden_layers=8)
    _, recorder = generate(model, layout, tmp_path / "x", sampling, num_speculative_tokens=4)
    drafted = {int(token) for draft in recorder.inner.drafts for token in draft.tokens}
    assert drafted <= set((torch.arange(40) + layout.tensors["d2t"]).tolist())
    assert max(drafted) >= 40


def test_a_checkpoint_under_a_neutral_path_is_run_as_what_it_is_row_68(tmp_path: Path) -> None:
    folder = LAYOUTS["standard"].save(tmp_path / "run3" / "checkpoint-500")
    model = tiny_target("llama", num_hidden_layers=8)
    with LLM(hf_model=model, speculative_config={"model": folder}, strict=True) as llm:
        assert llm.resolved_config is not None
        assert llm.resolved_config.method == "dflash"


@pytest.mark.parametrize(
    "layout",
    [
        flash(87, {"target_layer_ids": None}, aux=(2, 6), eagle_aux_hidden_state_layer_ids=None),
        flash(88, {"target_layer_ids": [0, 1, 5, 6]}, aux=(1, 2, 6, 7)),
        flash(89, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        flash(90, extra=checkpoints.vocabulary(WIDTH, VOCAB, VOCAB, seed=1)),
    ],
    ids=["no list of states", "four states", "rotary base in parameters", "an own head without a map"],
)
def test_variants_of_a_checkpoint_are_accepted_row_87(layout: Layout, tmp_path: Path) -> None:
    proposer, resolved, _ = layout.build(tmp_path / "x")
    assert resolved.traits.aux_layers == layout.aux
    proposer.close()


@pytest.mark.parametrize("name", ["dflash: standard", "dspark: from the anchor"])
def test_rotary_base_and_scaling_are_read_in_the_new_form_row_88(name: str, tmp_path: Path) -> None:
    layout = EVERY[name]
    settings = {key: value for key, value in layout.settings.items() if key != "rope_theta"}
    proposer, _, _ = replace(layout, settings={**settings, "rope_parameters": LLAMA_3}).build(tmp_path / "x")
    config = transformers.Qwen3Config(head_dim=checkpoints.HEAD_DIM, rope_parameters=dict(LLAMA_3))
    theirs = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(config)
    own = proposer._head._rotary.inv_freq  # type: ignore[attr-defined]
    torch.testing.assert_close(own, theirs.inv_freq)


def test_the_targets_embedding_is_found_whatever_its_name_row_89(tmp_path: Path) -> None:
    """GPT-2 keeps it in transformer.wte."""
    model = tiny_target("gpt2", n_layer=8)
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    results, _ = generate(model, LAYOUTS["standard"], tmp_path / "x", sampling, num_speculative_tokens=4)
    assert all(result.metrics.drafted > 10 for result in results)


@pytest.mark.parametrize("proposed", [None, 8])
def test_a_block_of_eight_drafts_seven_and_the_counters_agree_row_100(proposed: int | None, tmp_path: Path) -> None:
    """Whether the file is silent or proposes the block's size itself."""
    layout = LAYOUTS["speculators"] if proposed else LAYOUTS["standard"]
    if proposed:
        section = {**layout.settings["speculators_config"], "proposal_methods": [{"speculative_tokens": proposed}]}
        layout = replace(layout, settings={**layout.settings, "speculators_config": section})
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    model = tiny_target("llama", num_hidden_layers=8)
    results, recorder = generate(model, layout, tmp_path / "x", sampling)
    lengths = [length for draft in recorder.inner.drafts for length in draft.lengths]
    assert max(lengths) == 7
    assert sum(result.metrics.drafted for result in results) == sum(lengths)
