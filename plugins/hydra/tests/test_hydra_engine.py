"""Through the engine: drafts are the oracle's over a stock forward of the finished text, and the text is plain's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra_oracle as oracle
import numpy as np
import pytest
import torch
from hydra_checkpoints import TARGET, VOCAB
from hydra_layouts import LAYOUTS, Layout
from torch import Tensor

from specdec_core.token_tree import parse_tree
from specdec_engine import LLM
from specdec_testing.watching import Watch, said, watched

HALF = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.6, 0.4]}
TREE = "[(0,), (1,), (0, 0), (0, 1), (1, 0)]"


def prompts(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in (5, 24, 1)]


def stock_states(ids: list[int], offset: int) -> Tensor:
    """Return the target's states [n, H] by transformers' own forward: hidden_states[-(offset + 1)]."""
    TARGET.set_attn_implementation("eager")
    with torch.inference_mode():
        out = TARGET.get_decoder()(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return (out.last_hidden_state if offset == 0 else out.hidden_states[-(offset + 1)])[0]


def assert_drafts_are_of_the_stock_states(
    layout: Layout, watch: Watch, texts: list[list[int]], tree: str | None = None
) -> None:
    offset = int((layout.settings or {}).get("hidden_state_offset", 0))
    states, compared = [stock_states(ids, offset) for ids in texts], 0
    for row in watch.rows:
        text = next(i for i, ids in enumerate(texts) if ids[: len(row.text)] == row.text)
        torch.testing.assert_close(row.states, states[text][row.positions], atol=2e-4, rtol=2e-4)
        assert row.positions[-1] == len(row.text) - 2, "what the newest id came from"
        if tree is None:
            nodes = oracle.chain(layout.parts, row)
        else:
            nodes = oracle.tree(layout.parts, row, parse_tree(tree))
        assert nodes.margin > 1e-5
        assert (row.tokens, row.parents) == (nodes.tokens, nodes.parents)
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("name", ["prefix-mlp", "mlp, an earlier state"])
def test_heads_read_the_states_of_a_stock_forward(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    config = {"model": layout.save(tmp_path / "x"), "num_speculative_tokens": 3, **HALF}  # the method is detected
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, prefill_chunk_size=9, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, results = said(llm, prompts(1))
    assert_drafts_are_of_the_stock_states(layout, watch, texts)
    assert sum(result.metrics.accepted for result in results) > 8, "blocks of accepted drafts were looked at"


@pytest.mark.parametrize(
    ("name", "tree"), [("prefix-mlp", TREE), ("mlp", None), pytest.param("mlp", TREE, marks=pytest.mark.slow)]
)
def test_text_is_that_of_plain_decoding_in_mixed_batches(name: str, tree: str | None, tmp_path: Path) -> None:
    """Greedy and sampled requests side by side, of which two run at a time."""
    layout = LAYOUTS[name]
    config = {
        "method": "hydra",
        "model": layout.save(tmp_path / "x"),
        **({} if tree is None else {"speculative_token_tree": tree}),
    }
    mixed = (0.0, 0.8)
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(2), mixed)
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, _ = said(llm, prompts(2), mixed)
    assert texts == plain
    assert_drafts_are_of_the_stock_states(layout, watch, texts, tree)


@pytest.mark.parametrize(
    ("name", "keys"),
    [("prefix-mlp", {}), ("mlp", {"speculative_token_tree": TREE})],
)
def test_switched_off_for_a_while_and_preempted_it_says_the_same(
    name: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    """Two of three requests are too many; then there is room for two of them only."""
    config = {"method": "hydra", "model": LAYOUTS[name].save(tmp_path / "x"), "disable_by_batch_size": 2, **keys}
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, prompts(5))
    for engine in ({}, {"kv_cache_tokens": 64}):
        with LLM(hf_model=TARGET, speculative_config=config, strict=True, **engine) as llm:
            watch = watched(llm)
            texts, results = said(llm, prompts(5))
        assert texts == plain
        assert sum(result.metrics.drafted for result in results) > 0
        for row in watch.rows:
            if not keys:
                assert row.tokens == oracle.chain(LAYOUTS[name].parts, row).tokens


def test_a_tree_beside_the_chain_of_another_method(tmp_path: Path) -> None:
    """`combine` puts trees of heads and chains of lookups into one batch, and the text stays as it is."""
    heads = {"method": "hydra", "model": LAYOUTS["mlp"].save(tmp_path / "x"), "speculative_token_tree": TREE}
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    config = {"method": "combine", "methods": [lookup, heads], "rule": "first"}
    texts = [ids * 2 for ids in prompts(6)]
    with LLM(hf_model=TARGET, strict=True) as llm:
        plain, _ = said(llm, texts)
    with LLM(hf_model=TARGET, speculative_config=config, strict=True) as llm:
        found, results = said(llm, texts)
    assert found == plain
    assert sum(result.metrics.drafted for result in results) > 0
