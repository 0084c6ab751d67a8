"""Through the engine: drafts are the oracle's over a stock forward of the finished text, wherever the heads are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import medusa_oracle as oracle
import numpy as np
import pytest
import torch
from medusa_checkpoints import OLD_CONFIG, TARGET, VOCAB, Heads, old_tensors, random_heads
from medusa_layouts import LAYOUTS
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec_core.token_tree import parse_tree
from specdec_engine import LLM
from specdec_testing.targets import tiny_target
from specdec_testing.watching import Watch, said, watched

HALF = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.6, 0.4]}
TREE = "[(0,), (1,), (0, 0), (0, 1), (1, 0)]"


def prompts(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in (5, 24, 1)]


def final_states(model: Any, ids: list[int]) -> Tensor:
    """Return the state behind the final norm at every position, by transformers' own forward."""
    model.set_attn_implementation("eager")  # the one that every family spells out, caps of scores included
    with torch.inference_mode():
        states: Tensor = model.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    return states


def assert_drafts_are_of_the_stock_states(
    model: Any, heads: Heads, watch: Watch, texts: list[list[int]], tree: str | None = None
) -> None:
    states, compared = [final_states(model, ids) for ids in texts], 0
    for row in watch.rows:
        text = next(i for i, ids in enumerate(texts) if ids[: len(row.text)] == row.text)
        state = states[text][len(row.text) - 2]  # what the newest id came from
        torch.testing.assert_close(row.state, state, atol=2e-4, rtol=2e-4)
        if tree is None:
            nodes = oracle.chain(heads, state, row.limit, VOCAB)
        else:
            nodes = oracle.tree(heads, state, parse_tree(tree), row.limit, VOCAB)
        assert nodes.margin > 1e-4
        assert (row.tokens, row.parents) == (nodes.tokens, nodes.parents)
        compared += 1
    assert compared > 10


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt"])
def test_heads_read_the_state_behind_the_final_norm_that_the_newest_id_came_from(family: str, tmp_path: Path) -> None:
    model, layout = tiny_target(family), LAYOUTS["old, torch file"]
    config = {"method": "medusa", "model": layout.save(tmp_path / "x"), "num_speculative_tokens": 3, **HALF}
    with LLM(hf_model=model, speculative_config=config, strict=True, prefill_chunk_size=9, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, results = said(llm, prompts(1))
    assert_drafts_are_of_the_stock_states(model, layout.parts, watch, texts)
    assert sum(result.metrics.accepted for result in results) > 8, "blocks of accepted drafts were looked at"


def test_trees_go_through_the_engine_and_leave_the_text_as_it_is(tmp_path: Path) -> None:
    layout = LAYOUTS["new"]
    config = {"model": layout.save(tmp_path / "x"), "speculative_token_tree": TREE}  # the method is detected
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(2), (0.8,))
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, _ = said(llm, prompts(2), (0.8,))
    assert texts == plain
    assert_drafts_are_of_the_stock_states(TARGET, layout.parts, watch, texts, TREE)


def test_heads_in_the_targets_own_checkpoint_need_no_model(tmp_path: Path) -> None:
    """The target loads as if they were not there, and the method finds them."""
    folder, heads = tmp_path / "whole", random_heads(2, bias=True)
    TARGET.save_pretrained(folder)
    tensors = {**load_file(folder / "model.safetensors"), **old_tensors(heads, "medusa_head.")}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **OLD_CONFIG, "medusa_num_heads": 2}))
    with LLM(str(folder), speculative_config={"method": "medusa"}, strict=True, dtype="float32") as llm:
        assert llm.resolved_config is not None
        assert llm.resolved_config.num_speculative_tokens == 2
        watch = watched(llm)
        texts, _ = said(llm, prompts(3))
    assert_drafts_are_of_the_stock_states(TARGET, heads, watch, texts)


@pytest.mark.parametrize("shape", [{"num_speculative_tokens": 3}, {"speculative_token_tree": TREE}])
def test_typical_acceptance_is_lossy_and_greedy_where_the_request_is(tmp_path: Path, shape: dict[str, Any]) -> None:
    """It accepts more than the lossless rule, is reported as lossy, and changes nothing at temperature 0."""
    layout = LAYOUTS["new"]
    config = {"method": "medusa", "model": layout.save(tmp_path / "x"), **shape}
    typical = {**config, "rejection_sample_method": "typical", "posterior_threshold": 1e-3, "posterior_alpha": 0.1}
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(4))
    accepted = []
    for keys in (config, typical):
        with LLM(hf_model=TARGET, speculative_config=keys, strict=True) as llm:
            assert llm.resolved_config is not None
            assert llm.resolved_config.lossless == (keys is config)
            greedy, _ = said(llm, prompts(4))
            assert greedy == plain
            _, results = said(llm, prompts(4), (2.0,))
            accepted.append(sum(result.metrics.accepted for result in results))
    assert accepted[1] > accepted[0]


@pytest.mark.parametrize("keys", [{}, {"speculative_token_tree": TREE}])
def test_switched_off_for_a_while_and_preempted_it_says_and_drafts_the_same(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    """Two of three requests are too many; then there is room for two of them only."""
    layout = LAYOUTS["new"]
    config = {"method": "medusa", "model": layout.save(tmp_path / "x"), "disable_by_batch_size": 2, **keys}
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(5))
    for engine in ({}, {"kv_cache_tokens": 64}):
        with LLM(hf_model=TARGET, speculative_config=config, strict=True, **engine) as llm:
            watch = watched(llm)
            texts, results = said(llm, prompts(5))
        assert texts == plain
        assert sum(result.metrics.drafted for result in results) > 0
        if not keys:
            for row in watch.rows:
                assert row.tokens == oracle.chain(layout.parts, row.state, row.limit, VOCAB).tokens
