"""Through the engine: drafts are the oracle's over a stock forward of the finished text, and the text is plain's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redrafter_oracle as oracle
import torch
from redrafter_checkpoints import TARGET, VOCAB
from redrafter_layouts import LAYOUTS, Layout
from torch import Tensor

from specdec_engine import LLM
from specdec_testing.watching import Watch, said, watched

HALF = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.6, 0.4]}
BEAMS = {"num_beams": 4, "beam_depth": 3}


def prompts(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in (5, 24, 1)]


def final_states(ids: list[int]) -> Tensor:
    """Return the state behind the final norm at every position, by transformers' own forward."""
    TARGET.set_attn_implementation("eager")
    with torch.inference_mode():
        states: Tensor = TARGET.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    return states


def assert_drafts_are_of_the_stock_states(layout: Layout, watch: Watch, texts: list[list[int]], *, beams: bool) -> None:
    states, compared = [final_states(ids) for ids in texts], 0
    for row in watch.rows:
        text = next(i for i, ids in enumerate(texts) if ids[: len(row.text)] == row.text)
        state = states[text][len(row.text) - 2]  # what the newest id came from
        torch.testing.assert_close(row.state, state, atol=2e-4, rtol=2e-4)
        if beams:
            nodes = oracle.tree(layout.parts, row.state, row.text[-1], (4, 3, 4), row.limit)
        else:
            nodes = oracle.chain(layout.parts, row.state, row.text[-1], row.limit)
        assert nodes.margin > 1e-6
        assert (row.tokens, row.parents) == (nodes.tokens, nodes.parents)
        compared += 1
    assert compared > 10


def test_the_drafter_reads_the_state_that_the_newest_id_came_from(tmp_path: Path) -> None:
    layout = LAYOUTS["recurrent"]
    config = {"model": layout.save(tmp_path / "x"), "num_speculative_tokens": 3, **HALF}  # the method is detected
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, prefill_chunk_size=9, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, results = said(llm, prompts(1))
    assert_drafts_are_of_the_stock_states(layout, watch, texts, beams=False)
    assert sum(result.metrics.accepted for result in results) > 8, "blocks of accepted drafts were looked at"


def test_text_is_that_of_plain_decoding_in_mixed_batches_of_beams(tmp_path: Path) -> None:
    """Greedy and sampled requests side by side, of which two run at a time."""
    layout, mixed = LAYOUTS["recurrent"], (0.0, 0.8)
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(2), mixed)
    config = {"method": "redrafter", "model": layout.save(tmp_path / "x"), **BEAMS}
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, _ = said(llm, prompts(2), mixed)
    assert texts == plain
    assert_drafts_are_of_the_stock_states(layout, watch, texts, beams=True)


@pytest.mark.parametrize("keys", [{}, BEAMS])
def test_switched_off_for_a_while_and_preempted_it_says_the_same(keys: dict[str, Any], tmp_path: Path) -> None:
    """Two of three requests are too many; then there is room for two of them only."""
    layout = LAYOUTS["recurrent"]
    config = {"method": "redrafter", "model": layout.save(tmp_path / "x"), "disable_by_batch_size": 2, **keys}
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
                assert row.tokens == oracle.chain(layout.parts, row.state, row.text[-1], row.limit).tokens


def test_trees_of_beams_beside_the_chains_of_another_method(tmp_path: Path) -> None:
    """`combine` puts trees of beams and chains of lookups into one batch, and the text stays as it is."""
    beams = {"method": "redrafter", "model": LAYOUTS["recurrent"].save(tmp_path / "x"), **BEAMS}
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    config = {"method": "combine", "methods": [lookup, beams], "rule": "first"}
    texts = [ids * 2 for ids in prompts(6)]
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, texts)
    with LLM(hf_model=TARGET, speculative_config=config, strict=True) as llm:
        found, results = said(llm, texts)
    assert found == plain
    assert sum(result.metrics.drafted for result in results) > 0
