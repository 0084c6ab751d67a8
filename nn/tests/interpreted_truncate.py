"""Run by test_truncate in a process of its own, with TRITON_INTERPRET=1: the Triton form against the definition."""

import numpy as np
import torch
from truncations import KINDS, hard_rows, some_truncation

from specdec_nn.ops.truncate import triton as truncate_triton
from specdec_nn.ops.truncate.reference import truncate_reference

if __name__ == "__main__":
    rng = np.random.default_rng(7)
    truncate_triton.MOST = 64  # so that small rows take several blocks
    for trial, kind in enumerate((*KINDS, *KINDS)):
        rows, vocabulary = 2, int(rng.choice([1, 5, 64, 65, 120]))
        logits = hard_rows(rng, kind, rows, vocabulary)
        truncation = some_truncation(rng, rows, vocabulary)
        kept = logits.clone()
        got = truncate_triton.truncate(logits, truncation)
        assert torch.equal(got, truncate_reference(logits, truncation)), (trial, truncation)
        assert torch.equal(logits, kept)
    print("equal")
