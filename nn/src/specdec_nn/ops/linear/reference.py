"""The linear op: a weight as every backend gets it, and the definition in torch; it knows no backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor


@dataclass(eq=False)
class PackedLinear:
    """One weight matrix, y = x W^T + b, with room for the form that a backend prefers.

    weight        [O, I] the original tensor, kept and not copied
    bias          [O] or None
    form          what the numba backend knows of it, found by its `pack` on first use; None until then
    out_features  O
    in_features   I
    """

    weight: Tensor
    bias: Tensor | None = None
    form: Any = None
    out_features: int = field(init=False)
    in_features: int = field(init=False)

    def __post_init__(self) -> None:
        """Take the sizes from the weight, and refuse shapes that no backend could mean."""
        if self.weight.dim() != 2:
            raise ValueError(f"weight must be [out, in], got shape {tuple(self.weight.shape)}")
        self.out_features, self.in_features = self.weight.shape
        if self.bias is not None and self.bias.shape != (self.out_features,):
            raise ValueError(f"bias must be [{self.out_features}], got shape {tuple(self.bias.shape)}")


def linear_reference(x: Tensor, packed: PackedLinear) -> Tensor:
    """Return x W^T + b, [N, O] from x [N, I], in the dtype of x; the definition of the op."""
    return F.linear(x, packed.weight, packed.bias)
