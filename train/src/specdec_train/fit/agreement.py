"""How often a head drafts what its target predicts, by depth, on texts it was not trained on; it knows no method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_core.sources import TargetHandle
from specdec_core.training import Trainer, TrainingBatch, TrainingRequest
from specdec_nn.training.batches import Packing, ahead, ids_in, moved

ROWS = 512  # whose logits over the whole vocabulary are computed at a time


class Agreement:
    """Held-out batches, with what the target predicts at each of their rows."""

    def __init__(
        self, target: TargetHandle, requests: Sequence[TrainingRequest], shape: tuple[int, int], ids: int
    ) -> None:
        """Take requests up to about so many ids; `shape` is that of a batch."""
        packing = Packing(requests, *shape)
        self._device = target.device
        self._batches: list[tuple[TrainingBatch, Tensor]] = []
        for chosen in packing.epoch(None) if requests else ():
            if ids <= 0:
                break
            batch = moved(packing.batch(chosen), target.device)
            self._batches.append((batch, _said(target, batch)))
            ids -= ids_in(chosen)

    def measure(self, trainer: Trainer) -> list[float] | None:
        """Return for each depth the share of rows whose draft is the id that the target predicts; None without texts.

        Rows count whose newest id was written by the target, where drafts would be made in decoding; drafts before the
        one that counts are those of the text.
        """
        found = [self._counts(trainer, batch, said) for batch, said in self._batches]
        if not found:
            return None
        right, counted = (torch.stack(each).sum(dim=0) for each in zip(*found, strict=True))
        return (right / counted).tolist() if bool(counted.all()) else None

    @staticmethod
    def _counts(trainer: Trainer, batch: TrainingBatch, said: Tensor) -> tuple[Tensor, Tensor]:
        """Return [D] how many drafts of a batch are right, and how many count."""
        drafts = trainer.drafts(batch)
        wanted = torch.stack([ahead(said, depth + 1) for depth in range(drafts.shape[-1])], dim=-1)
        counts = (drafts >= 0) & ahead(batch.written)[..., None]
        return ((drafts == wanted) & counts).sum(dim=(0, 1)), counts.sum(dim=(0, 1))


def _said(target: TargetHandle, batch: TrainingBatch) -> Tensor:
    """Return the id [S, L] that the target predicts behind each row."""
    rows = torch.split(batch.last.to(target.dtype).flatten(0, 1), ROWS)
    return torch.cat([target.compute_logits(part).argmax(dim=-1) for part in rows]).view(batch.ids.shape).clone()
