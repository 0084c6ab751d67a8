"""Checks of the Triton kernels, run by test_kernels.py in a process of their own; on a CPU, in the interpreter."""

from __future__ import annotations

import pytest
import torch

from specdec_plugin_eagle.kernels import torch_ref
from specdec_plugin_eagle.kernels import triton as triton_ops

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("vocabulary", [1, 7, 1023, 1024, 2500])
def test_expansion_equals_the_reference(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary, generator=generator)
    logits[1] = 0.5  # all equal: the lowest ids
    logits[2] = logits[2].round()  # many equal
    if vocabulary > 1024:
        logits[3, [0, 1024, 2048]] = 9.0  # equal in different blocks
    logits[4, 1 + vocabulary // 2 :] = -torch.inf
    scores = -torch.rand(5, generator=generator)
    for top_k in {1, min(4, vocabulary), min(10, vocabulary)}:
        ids, cumulative = triton_ops.tree_expand(logits.to(DEVICE), scores.to(DEVICE), top_k)
        wanted, values = torch_ref.tree_expand(logits, scores, top_k)
        assert torch.equal(ids.cpu(), wanted)
        finite = torch.isfinite(values)
        assert torch.equal(torch.isfinite(cumulative.cpu()), finite)
        torch.testing.assert_close(cumulative.cpu()[finite], values[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("width", "dtype"), [(3, torch.float32), (512, torch.bfloat16), (700, torch.float32)])
def test_rows_equal_the_reference(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    states = torch.randn(3, 4, width, generator=generator).to(dtype)
    parents = torch.randint(0, 4, (3, 6), generator=generator)
    tokens = torch.randint(0, 90, (3, 6), generator=generator)
    starts = torch.tensor([5, 0, 17])
    given = [tensor.to(DEVICE) for tensor in (states, parents, tokens, starts)]
    for got, wanted in zip(
        triton_ops.draft_rows(*given, 2), torch_ref.draft_rows(states, parents, tokens, starts, 2), strict=True
    ):
        assert torch.equal(got.cpu(), wanted)
