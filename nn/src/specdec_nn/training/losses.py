"""Losses against the target's own distribution over some of its ids; it knows no head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_core.training import TrainingBatch
from specdec_nn.training.batches import ahead


class Teacher:
    """What the target predicts next, among a draft vocabulary.

    EAGLE-3 (arXiv 2503.01840, section 3.1) trains on the target's distribution. What lies outside of the draft
    vocabulary cannot be drafted: the rest is normalised, and rows whose next id is written by the target and is outside
    count nothing.
    """

    def __init__(
        self, rows: Tensor, ids: Tensor, vocab_size: int, cap: float | None = None, shift: Tensor | None = None
    ) -> None:
        """Take the rows [V_d, H] of the target's head for the draft vocabulary, its ids [V_d], and V.

        cap    the softcap of the target's logits (`final_logit_softcapping`), None without one
        shift  [V_d] what is added to the logits, as where some ids stand for others as well; None: nothing
        """
        self._rows, self._cap, self._shift = rows, cap, shift
        self._known = torch.zeros(vocab_size, dtype=torch.bool, device=rows.device)
        self._known[ids] = True

    def probabilities(self, batch: TrainingBatch, after: int) -> Tensor:
        """Return [S, L, V_d]: row i has the distribution of the id at i + after + 1, by the state at i + after."""
        with torch.no_grad():
            logits = ahead(batch.last, after).to(self._rows.dtype) @ self._rows.T
            if self._cap is not None:
                logits = self._cap * torch.tanh(logits / self._cap)
            if self._shift is not None:
                logits = logits + self._shift
            return logits.float().softmax(dim=-1)

    def counts(self, batch: TrainingBatch, after: int, prompt_weight: float) -> Tensor:
        """Return [S, L] how much the id at i + after + 1 counts: 1, `prompt_weight` inside prompts, 0 if not drafted.

        An id that is not in the batch counts, as nothing is known against it. Whether rows lie in one window is not
        looked at.
        """
        same = ahead(batch.request + 1, after + 1) == batch.request + 1
        written, known = ahead(batch.written, after + 1), self._known[ahead(batch.ids, after + 1)]
        weights = torch.full(batch.ids.shape, prompt_weight, device=batch.ids.device)
        weights[(written & same) | ~same] = 1.0
        weights[written & same & ~known] = 0.0
        return weights


class _SoftLoss(torch.autograd.Function):
    """The weighted sum of cross entropies, with no tensor as large as the logits but their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, probabilities: Tensor, weights: Tensor) -> Tensor:
        """Return a number from logits [N, V], distributions [N, V] and weights [N]."""
        sums = logits.logsumexp(dim=-1)
        ctx.save_for_backward(logits, sums, probabilities, weights)
        losses = sums - torch.linalg.vecdot(probabilities, logits)
        loss: Tensor = (losses * weights).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits: the head's distribution less the wanted one, times the weights."""
        logits, sums, probabilities, weights = ctx.saved_tensors
        gradient = (logits - sums[:, None]).exp_().sub_(probabilities)
        return gradient.mul_((gradients[0] * weights)[:, None]), None, None


def soft_loss(logits: Tensor, probabilities: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean cross entropy of logits [S, L, V_d] to distributions [S, L, V_d]; weights [S, L]."""
    flat = weights.flatten() / weights.sum().clamp(min=1e-6)
    loss: Tensor = _SoftLoss.apply(  # type: ignore[no-untyped-call] # torch's
        logits.float().flatten(0, 1), probabilities.flatten(0, 1), flat
    )
    return loss


def decayed(losses: Sequence[Tensor], decay: float) -> Tensor:
    """Return the mean of losses by depth, each counting `decay` times as much as the one before."""
    weights = [decay**depth for depth in range(len(losses))]
    total = losses[0] * 0.0
    for weight, loss in zip(weights, losses, strict=True):
        total = total + loss * (weight / sum(weights))
    return total
