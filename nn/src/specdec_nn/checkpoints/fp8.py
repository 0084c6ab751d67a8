"""FP8 weights with a scale for each block, in floating point; it reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from specdec_core.errors import ConfigError

BLOCK: Final = (128, 128)


def block_size(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return rows and columns of a block: `weight_block_size` of a config.json's quantization_config, or 128 x 128."""
    quantization = config.get("quantization_config") or {}
    size = quantization.get("weight_block_size") or BLOCK
    return int(size[0]), int(size[1])


def dequantized(name: str, weight: Tensor, scale: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the float32 weight [R, C] of an FP8 one: W[r, c] = w8[r, c] * s[r // size[0], c // size[1]].

    As in the DeepSeek-V3 technical report (arXiv 2412.19437, section 3.3.2). Raises ConfigError for a scale that is
    not [ceil(R / size[0]), ceil(C / size[1])].
    """
    blocks = [-(-length // block) for length, block in zip(weight.shape, size, strict=False)]
    if weight.ndim != 2 or list(scale.shape) != blocks:
        message = (
            f"{name} {list(weight.shape)} has scales {list(scale.shape)}, and blocks of {size[0]} x {size[1]} "
            f"(weight_block_size) make {blocks}"
        )
        raise ConfigError(message)
    rows = scale.float().repeat_interleave(size[0], dim=0)[: weight.shape[0]]
    return weight.float().mul_(rows.repeat_interleave(size[1], dim=1)[:, : weight.shape[1]])
