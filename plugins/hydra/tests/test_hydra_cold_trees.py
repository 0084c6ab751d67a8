"""At temperatures where heads are sure of one id, trees of drawn drafts leave the target's distribution of whole texts.

Through the engine, with heads that are wrong: their distributions have next to nothing left beside one id.
"""

from __future__ import annotations

from pathlib import Path

import hydra_checkpoints as checkpoints
import numpy as np
import pytest

from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import joint, random_table, table_target, tempered

LENGTH, VOCAB, HEADS, REQUESTS = 2, 4, 3, 1500
TREE = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 1, 0)]"


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_texts_of_a_static_tree_are_the_targets(temperature: float, tmp_path: Path) -> None:
    wanted = random_table(VOCAB, seed=3)
    heads = checkpoints.random_heads(HEADS, rows=VOCAB, width=VOCAB, seed=5)
    config = {
        "method": "hydra",
        "model": checkpoints.save(tmp_path / "x", checkpoints.tensors_of(heads), checkpoints.config(heads)),
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        "speculative_token_tree": TREE,
    }
    sampling = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=LENGTH + HEADS, ignore_eos=True)
        for seed in range(REQUESTS)
    ]
    model = table_target(tempered(wanted, temperature), num_layers=1, max_position_embeddings=64)
    with LLM(hf_model=model, speculative_config=config, max_num_seqs=REQUESTS, strict=True) as llm:
        results = llm.generate([{"prompt_token_ids": [0]}] * REQUESTS, sampling, use_tqdm=False)
    assert sum(result.metrics.drafted for result in results) > REQUESTS
    found = np.array([result.outputs[0].token_ids[:LENGTH] for result in results])
    codes = found @ (VOCAB ** np.arange(LENGTH)[::-1])
    assert_follows(np.bincount(codes, minlength=VOCAB**LENGTH), joint(wanted, 0, LENGTH))
