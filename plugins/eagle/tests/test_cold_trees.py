"""At temperatures where a head is sure of one id, trees of drawn drafts leave the target's distribution of whole texts.

Through the engine, with a head that is wrong: its distribution has next to nothing left beside one id, so whatever the
drafter draws and the verifier subtracts is far below the rounding of 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from perfect import perfect_head
from safetensors.torch import load_file, save_file

from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import joint, random_table, table_target, tempered

VOCAB, REQUESTS, LENGTH = 4, 1500, 2
TREES = {
    "siblings": [(0,), (1,), (2,)],
    "deep": [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 1, 0), (0, 0, 0)],
    "all": [(0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)],
}
WANTED = random_table(VOCAB, seed=3)


def wrong_head(folder: Path) -> str:
    """Write a head whose logits have nothing to do with the target's, with gaps of a few units."""
    place = perfect_head(folder, VOCAB)
    logits = 2.0 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5))
    file = Path(place) / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": (logits.T / VOCAB**0.5).contiguous()}, file)
    return place


def texts(folder: Path, temperature: float, **keys: Any) -> np.ndarray:
    """Return the ids [REQUESTS, LENGTH] of requests that differ in their seeds."""
    config = {
        "method": "eagle",
        "model": wrong_head(folder),
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        **keys,
    }
    wanted = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=LENGTH + 3, ignore_eos=True)
        for seed in range(REQUESTS)
    ]
    model = table_target(tempered(WANTED, temperature), num_layers=1, max_position_embeddings=64)
    with LLM(hf_model=model, speculative_config=config, max_num_seqs=REQUESTS, strict=True) as llm:
        results = llm.generate([{"prompt_token_ids": [0]}] * REQUESTS, wanted, use_tqdm=False)
    assert sum(result.metrics.drafted for result in results) > REQUESTS
    return np.array([result.outputs[0].token_ids[:LENGTH] for result in results])


@pytest.mark.filterwarnings("ignore:.*position")
@pytest.mark.parametrize(
    ("tree", "temperature"), [("siblings", 0.05), ("deep", 0.05), ("deep", 0.2), ("all", 0.1)], ids=str
)
def test_texts_of_a_static_tree_are_the_targets_at_low_temperatures(
    tree: str, temperature: float, tmp_path: Path
) -> None:
    found = texts(tmp_path / "x", temperature, speculative_token_tree=str(TREES[tree]))
    codes = found @ (VOCAB ** np.arange(LENGTH)[::-1])
    assert_follows(np.bincount(codes, minlength=VOCAB**LENGTH), joint(WANTED, 0, LENGTH))
