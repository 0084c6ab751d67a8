"""The EAGLE-3 network as it is trained, by the names of its checkpoints; it computes what `head.Eagle3Head` drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.training import TrainingBatch
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.rotary import Rotary
from specdec_nn.training.batches import ahead, behind
from specdec_nn.training.block import Norm, Projection, TrainedBlock
from specdec_nn.training.unrolled import UnrolledAttention


class MidLayer(TrainedBlock):
    """The one block, with the norms of the two vectors that its attention reads side by side."""

    def __init__(self, config: BlockConfig, width: int, inner: int) -> None:
        """Take the width of the target's states, which is the head's, and the neurons of the MLP."""
        super().__init__(config, width, 2 * width, inner)
        self.input_layernorm = Norm(width, config.eps)
        self.hidden_norm = Norm(width, config.eps)


class Eagle3Network(nn.Module):
    """All that is trained, and two tables that come from the data.

    scale  [n_a * H] what each dimension of the aux states is divided by in front of fc
    ids    [V_d] the target's ids that the head drafts, ascending
    """

    scale: Tensor
    ids: Tensor

    def __init__(self, keys: Mapping[str, Any], inner: int, scale: Tensor, ids: Tensor) -> None:
        """Draw weights of the sizes in `keys`, which are those of `specdec_nn.training.block.block_keys`."""
        super().__init__()
        config, width = BlockConfig.of(keys), int(keys["hidden_size"])
        self.width = width
        self.fc = Projection(len(scale), width)
        self.midlayer = MidLayer(config, width, inner)
        self.norm = Norm(width, config.eps)
        self.lm_head = Projection(width, len(ids))
        self.register_buffer("scale", scale)
        self.register_buffer("ids", ids)

    def states(self, batch: TrainingBatch, embeddings: Tensor, rotary: Rotary, depths: int) -> Iterator[Tensor]:
        """Yield the states [S, L, H] of each depth before the final norm; `embeddings` [S, L, H] are of `next_ids`.

        Row i of depth d reads the id at i + 1 and, for d > 0, what row i - 1 of the depth before made.
        """
        block = self.midlayer
        tokens = block.qkv(block.input_layernorm(embeddings), slice(0, self.width))
        turn = rotary.at(batch.positions.flatten())
        attention = UnrolledAttention(batch.request, block.config.head_dim**-0.5)
        features = self.fc(batch.aux.float() / self.scale).float()
        for _ in range(depths):
            qkv = tokens + block.qkv(block.hidden_norm(features), slice(self.width, None))
            made = block(qkv, features, rotary, turn, attention)
            yield made
            features = behind(made)

    def logits(self, states: Tensor) -> Tensor:
        """Return draft logits [S, L, V_d]."""
        made: Tensor = self.lm_head(self.norm(states))
        return made

    def tensors(self, vocab_size: int) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint in float32, the scale folded into fc, with the maps d2t and t2d."""
        found = {
            name: tensor.detach().cpu().float().clone()
            for name, tensor in self.state_dict().items()
            if name not in ("scale", "ids")
        }
        found["fc.weight"] /= self.scale.cpu()
        ids = self.ids.cpu()
        found["d2t"] = ids - torch.arange(len(ids))
        found["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        return found


def next_ids(batch: TrainingBatch) -> Tensor:
    """Return the id behind each row, [S, L]; 0 behind the last one of a lane."""
    return ahead(batch.ids)
