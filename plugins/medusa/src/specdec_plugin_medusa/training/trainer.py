"""Trains Medusa heads of one residual layer each over one shared output head (arXiv 2401.10774, sections 2.1, 2.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_core.training import TrainedHead, TrainerBuild, TrainingBatch
from specdec_nn.training.batches import ahead, unbroken
from specdec_nn.training.block import Projection
from specdec_nn.training.losses import Teacher, decayed, soft_loss
from specdec_nn.training.target import TargetParts, frequent_ids
from specdec_plugin_medusa.layout import HEAD, TOKEN_MAP, WEIGHT
from specdec_plugin_medusa.settings import ARCHITECTURE, MODEL_TYPE
from specdec_plugin_medusa.training.options import MedusaTrainingOptions


class MedusaNetwork(nn.Module):
    """Residual layers, and the output head that all share.

    ids  [V_d] the target's ids that the heads draft, ascending
    """

    ids: Tensor

    def __init__(self, heads: int, rows: Tensor, ids: Tensor) -> None:
        """Take rows [V_d, H] of the target's head for these ids; layers begin as zeros, so heads are the target's."""
        super().__init__()
        width = rows.shape[1]
        blocks = [Projection(width, width) for _ in range(heads)]
        self.blocks = nn.ModuleList(blocks)
        self.lm_head = Projection(width, len(ids))
        self.register_buffer("ids", ids)
        with torch.no_grad():
            self.lm_head.weight.copy_(rows)
            for block in blocks:
                block.weight.zero_()

    def logits(self, last: Tensor, head: int) -> Tensor:
        """Return draft logits [S, L, V_d] of one head over the target's last states [S, L, H]."""
        made: Tensor = self.lm_head(last + F.silu(self.blocks[head](last)))
        return made


class MedusaTrainer:
    """After `specdec_core.training.Trainer`."""

    def __init__(self, build: TrainerBuild[MedusaTrainingOptions]) -> None:
        """Count the ids and make the first weights."""
        self._build, self._options = build, build.options
        self._parts = TargetParts(build)
        ids = frequent_ids(build.data, build.target.info.vocab_size, self._options.draft_vocab)
        network = MedusaNetwork(self._options.steps, self._parts.head_rows(ids), ids)
        self.module = network.to(build.target.device)
        self._teacher: Teacher | None = None

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Return the output head apart from the layers."""
        head = {"params": [self.module.lm_head.weight], "scale": self._options.head_rate}
        return [{"params": list(self.module.blocks.parameters()), "orthogonal": True}, head]

    def loss(self, batch: TrainingBatch, progress: float) -> Tensor:
        """Return how far the drafts of each head are from the target's distribution."""
        teacher, last = self._known_teacher(), batch.last.float()
        wanted = teacher.probabilities(batch, 1)  # head k drafts what the target predicts 1 + k rows behind
        losses = []
        for head in range(self._options.steps):
            counts = teacher.counts(batch, 1 + head, self._options.prompt_weight) * unbroken(batch, 0, 1 + head)
            losses.append(soft_loss(self.module.logits(last, head), ahead(wanted, head), counts))
        return decayed(losses, self._options.depth_decay)

    def drafts(self, batch: TrainingBatch) -> Tensor:
        """Return the likeliest id of each head, [S, L, heads]."""
        with torch.no_grad():
            last = batch.last.float()
            found = []
            for head in range(self._options.steps):
                ids = self.module.ids[self.module.logits(last, head).argmax(dim=-1)]
                found.append(torch.where(unbroken(batch, 0, head + 1), ids, -1))
        return torch.stack(found, dim=-1)

    def head(self) -> TrainedHead:
        """Return the heads in the layout of vLLM: one output head for all, and the ids that its rows stand for."""
        dtype: torch.dtype = getattr(torch, self._options.dtype)
        weights = {WEIGHT.format(i, 0): block for i, block in enumerate(self.module.blocks.parameters())}
        weights[HEAD.format(0)] = self.module.lm_head.weight
        tensors: dict[str, Tensor] = {
            name: tensor.detach().cpu().to(dtype, copy=True) for name, tensor in weights.items()
        }
        tensors[TOKEN_MAP] = self.module.ids.cpu().clone()
        info = self._build.target.info
        config = {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "hidden_size": info.hidden_size,
            "vocab_size": info.vocab_size,
            "truncated_vocab_size": len(self.module.ids),
            "num_heads": self._options.steps,
            "num_hidden_layers": 1,
            "original_lm_head": True,
            "torch_dtype": self._options.dtype,
        }
        return TrainedHead(config=config, tensors=tensors)

    def _known_teacher(self) -> Teacher:
        """Return the teacher over the draft vocabulary, which a resumed run has from its checkpoint."""
        if self._teacher is None:
            ids, device = self.module.ids, self._build.target.device
            rows = self._parts.head_rows(ids.cpu()).to(device, self._build.target.dtype)
            self._teacher = Teacher(rows, ids, self._build.target.info.vocab_size, self._parts.cap)
        return self._teacher
