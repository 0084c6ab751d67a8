"""Through the engine: drafts are the oracle's over a stock forward of the finished text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlp_speculator_oracle as oracle
import numpy as np
import pytest
import torch
from mlp_speculator_checkpoints import TARGET, VOCAB
from mlp_speculator_layouts import LAYOUTS
from torch import Tensor

from specdec_engine import LLM
from specdec_testing.targets import tiny_target
from specdec_testing.watching import Row, said, watched

HALF = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.6, 0.4]}


def prompts(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in (5, 24, 1)]


def final_states(model: Any, ids: list[int]) -> Tensor:
    """Return the state behind the final norm at every position, by transformers' own forward."""
    model.set_attn_implementation("eager")  # the one that every family spells out, caps of scores included
    with torch.inference_mode():
        states: Tensor = model.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    return states


def state_of(row: Row, texts: list[list[int]], states: list[Tensor]) -> Tensor:
    """Return the stock state that the newest id of a row came from."""
    text = next(i for i, ids in enumerate(texts) if ids[: len(row.text)] == row.text)
    return states[text][len(row.text) - 2]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt"])
def test_the_state_behind_the_final_norm_and_the_newest_id_come_first(family: str, tmp_path: Path) -> None:
    model, layout = tiny_target(family), LAYOUTS["scaled input"]
    config = {"method": "mlp_speculator", "model": layout.save(tmp_path / "x"), **HALF}
    with LLM(hf_model=model, speculative_config=config, strict=True, prefill_chunk_size=9, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, results = said(llm, prompts(1))
    states = [final_states(model, ids) for ids in texts]
    for row in watch.rows:
        state = state_of(row, texts, states)
        torch.testing.assert_close(row.state, state, atol=2e-4, rtol=2e-4)
        nodes = oracle.chain(layout.parts, state, row.text[-1], row.limit, VOCAB)
        assert nodes.margin > 1e-4
        assert row.tokens == nodes.tokens
    assert len(watch.rows) > 10
    assert sum(result.metrics.accepted for result in results) > 8, "blocks of accepted drafts were looked at"


def test_trees_go_through_the_engine_and_leave_the_text_as_it_is(tmp_path: Path) -> None:
    layout = LAYOUTS["plain"]
    config = {"model": layout.save(tmp_path / "x"), "n_candidates": 4}  # the method is detected
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(2), (0.8,))
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, _ = said(llm, prompts(2), (0.8,))
    assert texts == plain
    states = [final_states(TARGET, ids) for ids in texts]
    for row in watch.rows:
        state = state_of(row, texts, states)
        nodes = oracle.tree(layout.parts, state, row.text[-1], (3, 2, 2), 4, row.limit, VOCAB)
        assert nodes.margin > 1e-5
        assert (row.tokens, row.parents) == (nodes.tokens, nodes.parents)
    assert len(watch.rows) > 10


def test_typical_acceptance_is_lossy_and_greedy_where_the_request_is(tmp_path: Path) -> None:
    """It accepts more than the lossless rule, is reported as lossy, and changes nothing at temperature 0."""
    config = {"method": "mlp_speculator", "model": LAYOUTS["plain"].save(tmp_path / "x")}
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


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"n_candidates": 4}])
def test_switched_off_for_a_while_and_preempted_it_says_and_drafts_the_same(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    """Three requests are too many; then there is room for two of them only."""
    layout = LAYOUTS["tied, stored once"]
    config = {"method": "mlp_speculator", "model": layout.save(tmp_path / "x"), "disable_by_batch_size": 2, **keys}
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(5))
    for engine in ({}, {"kv_cache_tokens": 64}):
        with LLM(hf_model=TARGET, speculative_config=config, strict=True, **engine) as llm:
            watch = watched(llm)
            texts, results = said(llm, prompts(5))
        assert texts == plain
        assert sum(result.metrics.drafted for result in results) > 0
        for row in watch.rows if not keys else ():
            assert row.tokens == oracle.chain(layout.parts, row.state, row.text[-1], row.limit, VOCAB).tokens
