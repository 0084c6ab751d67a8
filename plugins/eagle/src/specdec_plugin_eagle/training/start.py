"""First weights of an EAGLE-3 head: those of the target's last layer, norm and head; for other layers, random ones.

At the beginning fc passes on the highest of the aux states, divided by its root mean square, and the block makes of it
what the target's last layer would; the embedding half of queries, keys and values is random and small.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource
from specdec_nn.checkpoints.weights import read_tensors
from specdec_nn.training.target import TargetParts
from specdec_plugin_eagle.training.network import Eagle3Network

HEAD = "lm_head.weight"
EMBEDDING_GAIN = 1.0  # of the half of queries, keys and values that reads embeddings, in parts of unit gain

logger = logging.getLogger("specdec_plugin_eagle")


def copy_files(network: Eagle3Network, folder: str) -> None:
    """Begin with the files of a head that a trainer wrote; ids that it did not draft keep the rows that they have.

    Raises ConfigError for files that cannot be read, or of other sizes.
    """
    found = read_tensors(DraftSource(folder))
    own = dict(network.named_parameters())
    known = (
        {}
        if "d2t" not in found
        else {int(i): row for row, i in enumerate(found["d2t"] + torch.arange(len(found["d2t"])))}
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items() if name != HEAD}
    wrong = [name for name, shape in shapes.items() if name not in found or tuple(found[name].shape) != shape]
    if wrong or not known or HEAD not in found:
        what = ", ".join(wrong or [HEAD, "d2t"])
        message = f"{folder!r} is no head of these sizes: {what}; give the intermediate and the target that it has"
        raise ConfigError(message)
    kept = [(row, known[i]) for row, i in enumerate(network.ids.tolist()) if i in known]
    new, old = (torch.tensor(rows) for rows in zip(*kept, strict=True))
    with torch.no_grad():
        for name in shapes:
            own[name].copy_(found[name])
        network.fc.weight.mul_(network.scale)
        network.lm_head.weight[new] = found[HEAD][old].float()


def copy_head(network: Eagle3Network, parts: TargetParts) -> None:
    """Begin with the target's final norm and the rows of its head."""
    norm = parts.final_norm()
    with torch.no_grad():
        if norm is not None:
            network.norm.weight.copy_(norm)
        network.lm_head.weight.copy_(parts.head_rows(network.ids))


def copy_layer(network: Eagle3Network, layer: Mapping[str, Tensor], neurons: Tensor) -> None:
    """Begin with a decoder layer of the target, of its MLP with these neurons [inner]."""
    block, width = network.midlayer, network.width
    high = network.scale[-width:]
    size = float((high * high).mean().sqrt())
    with torch.no_grad():
        network.fc.weight.zero_()
        network.fc.weight[:, -width:] = torch.diag(high / size)
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = getattr(block.self_attn, name).weight
            weight[:, :width] *= EMBEDDING_GAIN
            weight[:, width:] = layer[f"self_attn.{name}.weight"]
        block.hidden_norm.weight.copy_(layer["input_layernorm.weight"])
        block.self_attn.o_proj.weight.copy_(layer["self_attn.o_proj.weight"] / size)
        block.post_attention_layernorm.weight.copy_(layer["post_attention_layernorm.weight"])
        block.mlp.gate_proj.weight.copy_(layer["mlp.gate_proj.weight"][neurons])
        block.mlp.up_proj.weight.copy_(layer["mlp.up_proj.weight"][neurons])
        block.mlp.down_proj.weight.copy_(layer["mlp.down_proj.weight"][:, neurons] / size)
