"""Which dimensions of a head the rotary embedding turns together: reorders stored queries and keys.

Layers here turn dimension i with i + width / 2 ("halves"); some checkpoints are for layers that turn 2 i with 2 i + 1
("neighbours"). Queries and keys are reordered alike, so that no attention score changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

PARTS = ("self_attn.{}_proj.weight", "self_attn.{}_proj.bias", "self_attn.{}_norm.weight")


def neighbours_to_halves(head_dim: int, width: int) -> Tensor:
    """Return the order [head_dim] in which neighbours become halves; dimensions from `width` on do not turn."""
    return torch.cat([torch.arange(width).view(-1, 2).T.flatten(), torch.arange(width, head_dim)])


def halves_to_neighbours(head_dim: int) -> Tensor:
    """Return the order [head_dim] in which halves become neighbours."""
    return torch.arange(head_dim).view(2, -1).T.flatten()


def reordered(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Return a layer's tensors with the dimensions of each query and key head, and of their norms, in that order."""
    found = dict(tensors)
    for name in (part.format(letter) for letter in "qk" for part in PARTS):
        if name in found:
            tensor = found[name]
            heads = tensor.view(-1, len(order), *tensor.shape[1:])
            found[name] = heads[:, order.to(tensor.device)].reshape(tensor.shape)
    return found
