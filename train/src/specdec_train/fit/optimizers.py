"""Makes the optimizers of a run: Muon for matrices between hidden states, AdamW for all else; it knows no method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim import AdamW, Muon, Optimizer

from specdec_core.training import Trainer
from specdec_train.fit.settings import Settings


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a run with an optimizer takes where nothing is given: the largest learning rate, and ids of a batch."""

    lr: float
    batch_ids: int


DEFAULTS: Final = {"muon": Defaults(2.5e-3, 2048), "adamw": Defaults(1e-3, 768)}


def optimizers(trainer: Trainer, settings: Settings) -> list[Optimizer]:
    """Return the optimizers of a trainer's parameters; each group has `scale`, its factor of the learning rate.

    "muon" updates matrices of groups that are `orthogonal` by Muon (momentum whose update is orthogonalized:
    https://kellerjordan.github.io/posts/muon), with updates as large as AdamW's (arXiv 2502.16982), so that one
    learning rate does for both. Vectors do not decay.
    """
    by_muon: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for group in trainer.parameters():
        scale = float(group.get("scale", 1.0))
        matrices = [each for each in group["params"] if each.ndim == 2]
        rest = [each for each in group["params"] if each.ndim != 2]
        chosen = by_muon if settings.optimizer == "muon" and group.get("orthogonal") else others
        if matrices:
            chosen.append({"params": matrices, "scale": scale, "weight_decay": settings.weight_decay})
        if rest:
            others.append({"params": rest, "scale": scale, "weight_decay": 0.0})
    made: list[Optimizer] = []
    if by_muon:
        made.append(Muon(by_muon, lr=settings.lr, adjust_lr_fn="match_rms_adamw"))
    if others:
        made.append(AdamW(others, lr=settings.lr, betas=(0.9, 0.95), fused=True))
    return made


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies matrices of bfloat16 faster than those of float32."""
    if device.type != "cpu":
        return True
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
