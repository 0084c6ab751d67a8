"""At temperatures where heads are sure of one id, trees of drawn drafts leave the target's distribution of whole texts.

Through the engine, with heads that are wrong: their distributions have next to nothing left beside one id.
"""

from __future__ import annotations

from pathlib import Path

import medusa_checkpoints as checkpoints
import numpy as np
import pytest
import torch

from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import joint, random_table, table_target, tempered

LENGTH = 2
PUBLISHED = ("mc_sim_7b_63", 12, 4)  # the tree's name, ids (its widest family has ten), heads
SMALL = ("[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 1, 0)]", 4, 3)


def wrong_heads(folder: Path, vocab: int, count: int) -> str:
    """Write heads whose logits have nothing to do with the target's, with gaps of a few units."""
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for head in range(count):
        tensors[f"{head}.0.linear.weight"] = torch.zeros(vocab, vocab)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(vocab)
        tensors[f"{head}.1.weight"] = 2.0 * torch.randn(vocab, vocab, generator=generator) / vocab**0.5
    return checkpoints.save(folder, tensors, {**checkpoints.OLD_CONFIG, "medusa_num_heads": count})


@pytest.mark.parametrize(
    ("shape", "temperature", "requests"),
    [(SMALL, 0.05, 1500), (SMALL, 0.2, 1500), (PUBLISHED, 0.1, 600)],
    ids=["small, 0.05", "small, 0.2", "published, 0.1"],
)
def test_texts_of_a_static_tree_are_the_targets_at_low_temperatures(
    shape: tuple[str, int, int], temperature: float, requests: int, tmp_path: Path
) -> None:
    tree, vocab, heads = shape
    wanted = random_table(vocab, seed=3)
    config = {
        "method": "medusa",
        "model": wrong_heads(tmp_path / "x", vocab, heads),
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        "speculative_token_tree": tree,
    }
    sampling = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=LENGTH + heads, ignore_eos=True)
        for seed in range(requests)
    ]
    model = table_target(tempered(wanted, temperature), num_layers=1, max_position_embeddings=64)
    with LLM(hf_model=model, speculative_config=config, max_num_seqs=requests, strict=True) as llm:
        results = llm.generate([{"prompt_token_ids": [0]}] * requests, sampling, use_tqdm=False)
    assert sum(result.metrics.drafted for result in results) > requests
    found = np.array([result.outputs[0].token_ids[:LENGTH] for result in results])
    codes = found @ (vocab ** np.arange(LENGTH)[::-1])
    assert_follows(np.bincount(codes, minlength=vocab**LENGTH), joint(wanted, 0, LENGTH))
