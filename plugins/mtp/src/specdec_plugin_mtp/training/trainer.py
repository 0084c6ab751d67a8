"""Trains one MTP layer that drafts again and again (FastMTP, arXiv 2509.18362, section 3), as a file of its own.

The layout is that of speculators' type mtp with a layer of Qwen2 (docs/mtp.md); embedding and head are the target's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.errors import ConfigError
from specdec_core.training import TrainedHead, TrainerBuild, TrainingBatch
from specdec_nn.checkpoints.speculators import BASE, SECTION, TYPE
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.rotary import Rotary
from specdec_nn.training.batches import ahead, behind, unbroken
from specdec_nn.training.block import Norm, Projection, TrainedBlock, block_keys
from specdec_nn.training.losses import Teacher, decayed, soft_loss
from specdec_nn.training.target import TargetParts, frequent_ids
from specdec_nn.training.unrolled import UnrolledAttention
from specdec_plugin_mtp.speculators import ARCHITECTURE, KIND, LAYER, MODULES
from specdec_plugin_mtp.training.options import MtpTrainingOptions

EMBEDDING_GAIN = 0.3  # of the half of the projection that reads embeddings, in parts of unit gain


class MtpNetwork(TrainedBlock):
    """The layer with what is around it, by the names of its file.

    ids  [V_l] the target's ids among which the loss of every batch compares, ascending
    """

    ids: Tensor

    def __init__(self, keys: Mapping[str, Any], inner: int, ids: Tensor) -> None:
        """Draw weights of the sizes in `keys`, which are those of `specdec_nn.training.block.block_keys`."""
        config, width = BlockConfig.of(keys), int(keys["hidden_size"])
        super().__init__(config, width, width, inner, bias=True)
        self.width = width
        self.token_layernorm = Norm(width, config.eps)
        self.hidden_layernorm = Norm(width, config.eps)
        self.input_layernorm = Norm(width, config.eps)
        self.final_layernorm = Norm(width, config.eps)
        self.input_proj = Projection(2 * width, width)
        self.register_buffer("ids", ids)

    def begin(self, layer: Mapping[str, Tensor] | None, final_norm: Tensor | None) -> None:
        """Pass states on at first, and take the weights of the target's last layer and of its last norm."""
        with torch.no_grad():
            self.input_proj.weight[:, : self.width] *= EMBEDDING_GAIN
            self.input_proj.weight[:, self.width :] = torch.eye(self.width)
            if final_norm is not None:
                self.final_layernorm.weight.copy_(final_norm)
            own = dict(self.named_parameters())
            for name, tensor in (layer or {}).items():
                if own[name].shape == tensor.shape:
                    own[name].copy_(tensor)

    def states(
        self, batch: TrainingBatch, features: Tensor, embeddings: Tensor, rotary: Rotary, depths: int
    ) -> Iterator[Tensor]:
        """Yield the states [S, L, H] of each depth behind the final norm; features [S, L, H] are the target's.

        Row i of depth d reads the id at i + 1, of which `embeddings` are, and for d > 0 what row i - 1 of the depth
        before made.
        """
        tokens = self.input_proj_half(self.token_layernorm(embeddings), slice(0, self.width))
        turn = rotary.at(batch.positions.flatten())
        attention = UnrolledAttention(batch.request, self.config.head_dim**-0.5)
        for _ in range(depths):
            residual = tokens + self.input_proj_half(self.hidden_layernorm(features), slice(self.width, None))
            qkv = self.qkv(self.input_layernorm(residual))
            made = self.final_layernorm(self(qkv, residual, rotary, turn, attention))
            yield made
            features = behind(made)

    def input_proj_half(self, x: Tensor, columns: slice) -> Tensor:
        """Return what half of the projection makes of its half of the input, in float32."""
        return nn.functional.linear(x, self.input_proj.weight[:, columns]).float()


class MtpTrainer:
    """After `specdec_core.training.Trainer`."""

    def __init__(self, build: TrainerBuild[MtpTrainingOptions]) -> None:
        """Count the ids and make the first weights. Raises ConfigError for a target without a norm to undo."""
        self._build, self._options, info = build, build.options, build.target.info
        self._parts = TargetParts(build)
        self._keys = block_keys(self._parts.config)
        self._norm = self._parts.final_norm()
        if self._norm is None and info.num_layers not in build.aux_layers:
            message = f"{build.method} reads the state that leaves layer {info.num_layers}, and the data have none"
            raise ConfigError(f"{message}; collect them with --aux-layers {info.num_layers}")
        inner = self._options.intermediate or int(self._parts.config.get("intermediate_size") or 4 * info.hidden_size)
        ids = frequent_ids(build.data, info.vocab_size, self._options.loss_vocab)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(build.seed)
            network = MtpNetwork(self._keys, inner, ids)
        network.begin(self._parts.layer(info.num_layers - 1), self._norm)
        self.module = network.to(build.target.device)
        self._turns = Rotary(self._keys, self._keys["head_dim"], info.max_model_len, build.target.device, torch.float32)

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Return all in one group."""
        return [{"params": list(self.module.parameters()), "orthogonal": True}]

    def loss(self, batch: TrainingBatch, progress: float) -> Tensor:
        """Return how far the drafts of each depth are from the target's distribution."""
        options, (ids, shift) = self._options, self._compared(batch)
        depths = 1 if progress < options.single_share else options.steps
        rows, target, cap = self._parts.head_rows(ids).to(shift.device), self._build.target, self._parts.cap
        teacher = Teacher(rows.to(target.dtype), ids.to(shift.device), target.info.vocab_size, cap, shift)
        wanted = teacher.probabilities(batch, 1)
        counts = teacher.counts(batch, 1, options.prompt_weight)
        losses = []
        for depth, states in enumerate(self._states(batch, depths)):
            logits = nn.functional.linear(states, rows).float()
            if cap is not None:
                logits = cap * torch.tanh(logits / cap)
            losses.append(soft_loss(logits + shift, wanted, counts * unbroken(batch, depth, 1)))
        return decayed(losses, options.depth_decay)

    def _compared(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Return the ids [n] of a batch's loss, on the CPU, and what is added to their logits [n].

        The frequent ones, and every so many-th of the others from a place that the batch's ids choose; each of those
        stands for as many, so that no id can be drafted that is never compared.
        """
        frequent = self.module.ids.cpu()
        is_other = torch.ones(self._build.target.info.vocab_size, dtype=torch.bool)
        is_other[frequent] = False
        others = is_other.nonzero().flatten()
        stride = max(1, -(-len(others) // self._options.other_ids))
        others = others[int(batch.ids.sum()) % stride :: stride]
        shift = torch.cat([torch.zeros(len(frequent)), torch.full((len(others),), math.log(stride))])
        return torch.cat([frequent, others]), shift.to(batch.ids.device)

    def drafts(self, batch: TrainingBatch) -> Tensor:
        """Return the likeliest ids [S, L, steps], of the whole vocabulary."""
        found, target = [], self._build.target
        with torch.no_grad():
            for depth, states in enumerate(self._states(batch, self._options.steps)):
                rows = states.to(target.dtype).flatten(0, 1)
                ids = torch.cat([target.compute_logits(part).argmax(dim=-1) for part in torch.split(rows, 256)])
                ids = ids.view(batch.ids.shape)
                found.append(torch.where(unbroken(batch, 0, depth + 1), ahead(ids, depth), -1))
        return torch.stack(found, dim=-1)

    def head(self) -> TrainedHead:
        """Return the layer as a file of speculators' type mtp."""
        dtype: torch.dtype = getattr(torch, self._options.dtype)
        info = self._build.target.info
        layer = {
            "model_type": "qwen2",
            **self._keys,
            "intermediate_size": len(self.module.mlp.gate_proj.weight),
            "num_hidden_layers": 1,
            "vocab_size": info.vocab_size,
        }
        proposal = {"proposal_type": "greedy", "speculative_tokens": self._options.steps}
        section = {"algorithm": KIND, "proposal_methods": [proposal], "verifier": {"name_or_path": info.model}}
        config = {
            "architectures": [ARCHITECTURE],
            TYPE: KIND,
            MODULES: 1,
            BASE: layer,
            SECTION: section,
            "torch_dtype": self._options.dtype,
        }
        state = {name: tensor for name, tensor in self.module.state_dict().items() if name != "ids"}
        tensors = {f"{LAYER}.{name}": t.detach().cpu().to(dtype, copy=True) for name, t in state.items()}
        return TrainedHead(config=config, tensors=tensors)

    def _states(self, batch: TrainingBatch, depths: int) -> Iterator[Tensor]:
        embeddings = self._build.target.embed(ahead(batch.ids).flatten()).view(*batch.ids.shape, -1)
        # Tensors of an inference mode cannot be in a graph.
        return self.module.states(batch, self._features(batch), embeddings.clone().float(), self._turns, depths)

    def _features(self, batch: TrainingBatch) -> Tensor:
        """Return the states [S, L, H] that leave the last layer; without those, what the next norm makes the same of.

        The last state is that state normed and scaled by dimension. Undoing the scale leaves its direction, and nothing
        else of it is read.
        """
        layers, width = self._build.aux_layers, self._keys["hidden_size"]
        if self._build.target.info.num_layers in layers:
            at = layers.index(self._build.target.info.num_layers)
            return batch.aux[..., at * width : (at + 1) * width].float()
        assert self._norm is not None  # checked at the beginning
        return batch.last.float() / self._norm.to(batch.last.device)
