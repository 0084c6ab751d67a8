"""The vector of the mask id in a file of its own, `mask_embedding.pt` (docs/checkpoints.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from specdec_core.errors import ConfigError


def read_mask(file: Path, token: int, width: int) -> Tensor:
    """Return the vector of the mask id, [H_d], from a file with it alone or beside its id; raises ConfigError."""
    try:
        content = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # unpickling raises whatever it likes
        cause = str(error).partition("\n")[0]
        message = f"{file} cannot be read ({type(error).__name__}: {cause})"
        raise ConfigError(message) from error
    if isinstance(content, Mapping):
        said = content.get("mask_token_id")
        if said is not None and int(said) != token:
            message = f"{file} holds the vector of id {int(said)}, and the mask id in config.json is {token}"
            raise ConfigError(message)
        content = content.get("embedding")
    if not isinstance(content, Tensor) or content.numel() != width:
        found = list(content.shape) if isinstance(content, Tensor) else type(content).__name__
        message = f"{file} must hold one vector of width {width}, got {found}"
        raise ConfigError(message)
    return content.reshape(width)
