"""Unrolled attention is what the drafting loop computes: committed rows, and behind one of them a chain of drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_nn.training.losses import soft_loss
from specdec_nn.training.unrolled import UnrolledAttention

HEADS, GROUPS, WIDTH, DEPTHS = 4, 2, 8, 4
REQUEST = torch.tensor([[0] * 7 + [1] * 4 + [-1], [2] * 12])


def drawn() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return queries, keys and values of each depth."""
    generator = torch.Generator().manual_seed(0)
    sizes = (HEADS, GROUPS, GROUPS)
    return [
        tuple(torch.randn(*REQUEST.shape, n, WIDTH, generator=generator, requires_grad=True) for n in sizes)
        for _ in range(DEPTHS)
    ]


def by_the_loop(parts: list[tuple[Tensor, Tensor, Tensor]], lane: int, row: int, depth: int) -> Tensor:
    """Return what the draft `depth` behind row - depth sees: a list of rows, and plain attention over it."""
    anchor = row - depth
    first = int((REQUEST[lane] == REQUEST[lane, row]).nonzero()[0])
    seen = [(0, j) for j in range(first, anchor + 1)] + [(d, anchor + d) for d in range(1, depth + 1)]
    out = []
    for head in range(HEADS):
        shared = head * GROUPS // HEADS
        keys = torch.stack([parts[d][1][lane, j, shared] for d, j in seen])
        values = torch.stack([parts[d][2][lane, j, shared] for d, j in seen])
        weights = (keys @ parts[depth][0][lane, row, head] * WIDTH**-0.5).softmax(dim=0)
        out.append(weights @ values)
    return torch.stack(out)


def test_each_depth_sees_the_committed_rows_and_its_own_way() -> None:
    parts = drawn()
    attention = UnrolledAttention(REQUEST, WIDTH**-0.5)
    compared = 0
    for depth, (q, k, v) in enumerate(parts):
        found = attention(q, k, v)
        assert found.isfinite().all()
        for lane in range(len(REQUEST)):
            for row in range(depth, REQUEST.shape[1]):
                if REQUEST[lane, row] >= 0 and REQUEST[lane, row - depth] == REQUEST[lane, row]:
                    torch.testing.assert_close(found[lane, row], by_the_loop(parts, lane, row, depth))
                    compared += 1
    assert compared > 60


def test_gradients_are_those_of_the_loop() -> None:
    parts = drawn()
    attention = UnrolledAttention(REQUEST, WIDTH**-0.5)
    outputs = [attention(*part) for part in parts]
    tensors = [tensor for part in parts for tensor in part]
    made = torch.autograd.grad(outputs[3][1, 9].sum(), tensors, materialize_grads=True)
    wanted = torch.autograd.grad(by_the_loop(parts, 1, 9, 3).sum(), tensors, materialize_grads=True)
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_the_loss_and_its_gradient_are_those_of_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator, requires_grad=True)
    wanted = torch.randn(2, 5, 7, generator=generator).softmax(dim=-1)
    weights = torch.rand(2, 5, generator=generator)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1), reduction="none")
    plain = (losses * weights.flatten()).sum() / weights.sum()
    (expected,) = torch.autograd.grad(plain, logits)
    loss = soft_loss(logits, wanted, weights)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(torch.autograd.grad(3 * loss, logits)[0], 3 * expected)
