"""Trains an EAGLE-3 head with training-time test (arXiv 2503.01840, section 3.1), and writes its public layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_core.training import TrainedHead, TrainerBuild, TrainingBatch
from specdec_nn.layers.rotary import Rotary
from specdec_nn.training.batches import Packing, ahead, unbroken
from specdec_nn.training.block import block_keys
from specdec_nn.training.losses import Teacher, decayed, soft_loss
from specdec_nn.training.target import TargetParts, frequent_ids, scales
from specdec_plugin_eagle.aux_layers import INNER, KEY, default_layers
from specdec_plugin_eagle.training import start
from specdec_plugin_eagle.training.network import Eagle3Network, next_ids
from specdec_plugin_eagle.training.options import Eagle3TrainingOptions

ARCHITECTURE = "LlamaForCausalLMEagle3"  # a name that vLLM, SGLang and the authors' code know
SAMPLE = (2, 256)  # lanes and rows of the batch by which neurons are chosen


class Eagle3Trainer:
    """After `specdec_core.training.Trainer`."""

    def __init__(self, build: TrainerBuild[Eagle3TrainingOptions]) -> None:
        """Measure the data and make the first weights. Raises ConfigError for data or targets that do not fit."""
        self._build, self._options, info = build, build.options, build.target.info
        if not build.aux_layers:
            wanted = default_layers(info.num_layers)
            message = f"{build.method} reads states of layers such as {list(wanted)}, and the data have none"
            raise ConfigError(f"{message}; collect them with --aux-layers {','.join(map(str, wanted))}")
        self._parts = TargetParts(build)
        self._keys = block_keys(self._parts.config)
        ids = frequent_ids(build.data, info.vocab_size, self._options.draft_vocab)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(build.seed)
            self.module = self._network(scales(build.data), ids).to(build.target.device)
        self._table = build.target.embedding_weight.detach()
        self._turns = self._rotary(info.max_model_len, self._table.device)
        self._teacher: Teacher | None = None

    def _network(self, scale: Tensor, ids: Tensor) -> Eagle3Network:
        """Return the network with its first weights."""
        layer = self._parts.layer(self._build.target.info.num_layers - 1)
        whole = int(self._parts.config.get("intermediate_size") or 4 * self._keys["hidden_size"])
        if layer is not None:
            whole = len(layer["mlp.gate_proj.weight"])
        inner = self._options.intermediate or whole
        if self._options.start == "random":
            return Eagle3Network(self._keys, inner, scale, ids)
        if self._options.start != "target":
            network = Eagle3Network(self._keys, inner, scale, ids)
            start.copy_head(network, self._parts)
            start.copy_files(network, self._options.start)
            return network
        if layer is None:
            start.logger.warning(
                "the target's last layer is not made like Llama's: the head begins with random weights"
            )
        elif inner > whole:
            message = f"intermediate is {inner}, and the target's MLP has {whole} neurons to begin with"
            raise ConfigError(f"{message}; give at most {whole}, or start random")
        network = Eagle3Network(self._keys, inner, scale, ids)
        start.copy_head(network, self._parts)
        if layer is not None:
            start.copy_layer(network, layer, self._neurons(layer, whole, inner, network))
        return network

    def _neurons(self, layer: Mapping[str, Tensor], whole: int, inner: int, like: Eagle3Network) -> Tensor:
        """Return the `inner` neurons of a layer that add most to the residual, over a few texts, ascending."""
        if inner == whole:
            return torch.arange(whole)
        network = Eagle3Network(self._keys, whole, like.scale, like.ids)
        start.copy_layer(network, layer, torch.arange(whole))
        kept: list[Tensor] = []
        network.midlayer.mlp.down_proj.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
        packing = Packing(self._build.data.requests(), *SAMPLE)
        batch = packing.batch(packing.epoch(self._build.seed)[0])
        rotary = self._rotary(int(batch.positions.max()) + 1, torch.device("cpu"))
        table = self._build.target.embedding_weight.detach().cpu()
        with torch.no_grad():
            next(network.states(batch, table[next_ids(batch)].float(), rotary, 1))
        sizes = kept[0][batch.request >= 0].abs().mean(0) * network.midlayer.mlp.down_proj.weight.norm(dim=0)
        chosen: Tensor = sizes.argsort(descending=True)[:inner].sort().values
        return chosen

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Return the output head apart from all else."""
        head = self.module.lm_head.weight
        others = [parameter for parameter in self.module.parameters() if parameter is not head]
        return [{"params": others, "orthogonal": True}, {"params": [head], "scale": self._options.head_rate}]

    def loss(self, batch: TrainingBatch, progress: float) -> Tensor:
        """Return how far the drafts of each depth are from the target's distribution."""
        options, teacher = self._options, self._known_teacher()
        depths = 1 if progress < options.single_share else options.steps
        wanted = teacher.probabilities(batch, 1)
        counts = teacher.counts(batch, 1, options.prompt_weight)
        losses = [
            soft_loss(self.module.logits(states), wanted, counts * unbroken(batch, depth, 1))
            for depth, states in enumerate(self._states(batch, depths))
        ]
        return decayed(losses, options.depth_decay)

    def drafts(self, batch: TrainingBatch) -> Tensor:
        """Return the likeliest ids [S, L, steps]."""
        found = []
        with torch.no_grad():
            for depth, states in enumerate(self._states(batch, self._options.steps)):
                ids = self.module.ids[self.module.logits(states).argmax(dim=-1)]
                found.append(torch.where(unbroken(batch, 0, depth + 1), ahead(ids, depth), -1))
        return torch.stack(found, dim=-1)

    def head(self) -> TrainedHead:
        """Return the head with the scale of the states folded into fc."""
        dtype: torch.dtype = getattr(torch, self._options.dtype)
        vocab_size = self._build.target.info.vocab_size
        tensors = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.module.tensors(vocab_size).items()
        }
        config = {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            **self._keys,
            "intermediate_size": len(self.module.midlayer.mlp.gate_proj.weight),
            "num_hidden_layers": 1,
            "vocab_size": vocab_size,
            "draft_vocab_size": len(self.module.ids),
            "tie_word_embeddings": False,
            "torch_dtype": self._options.dtype,
            **self._listed(),
        }
        return TrainedHead(config=config, tensors=tensors)

    def _listed(self) -> dict[str, Any]:
        """Return the keys that name the aux layers, in both numberings; none where they are those of every reader."""
        layers = self._build.aux_layers
        if layers == default_layers(self._build.target.info.num_layers):
            return {}
        if 0 in layers:  # no layer leaves the embeddings
            return {KEY: list(layers)}
        inner = {KEY: [layer - 1 for layer in layers], "use_aux_hidden_state": True}
        return {KEY: list(layers), INNER: inner}

    def _states(self, batch: TrainingBatch, depths: int) -> Any:
        embeddings = self._table[next_ids(batch)].float()
        return self.module.states(batch, embeddings, self._turns, depths)

    def _rotary(self, positions: int, device: torch.device) -> Rotary:
        return Rotary(self._keys, self._keys["head_dim"], positions, device, torch.float32)

    def _known_teacher(self) -> Teacher:
        """Return the teacher over the draft vocabulary, which a resumed run has from its checkpoint."""
        if self._teacher is None:
            rows = self._parts.head_rows(self.module.ids.cpu()).to(self._table.device)
            dtype = self._table.dtype
            self._teacher = Teacher(
                rows.to(dtype), self.module.ids, self._build.target.info.vocab_size, self._parts.cap
            )
        return self._teacher
