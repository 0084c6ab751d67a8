"""Rotary position embedding in the split-half layout, with tables as long as the host's context asks for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from specdec_core.config.rope import plain_rope, rope_problem
from specdec_core.errors import ConfigError

_PARTIAL: Final = "partial_rotary_factor"
_KEYS: Final = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    _PARTIAL,
    "max_position_embeddings",
    "original_max_position_embeddings",
)


class Rotary:
    """Cosines and sines of positions 0 .. num_positions - 1, from the rope keys of a draft's configuration."""

    def __init__(
        self, config: Mapping[str, Any], head_dim: int, num_positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Read rope_theta, rope_scaling or rope_parameters, and partial_rotary_factor, as transformers means them.

        The tables hold `num_positions` rows, whatever max_position_embeddings says; float32 inside, `dtype` outside.
        Rows are those of text: mrope is plain rotary there. Raises ConfigError for keys of which no table can be made.
        """
        self.inv_freq, scaling = _frequencies(config, head_dim)
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * self.inv_freq[None, :].float()
        both = torch.cat([angles, angles], dim=-1)
        self.width = both.shape[-1]  # of a head, how much turns
        self._cos = (both.cos() * scaling).to(device, dtype)
        self._sin = (both.sin() * scaling).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions [N], [N, 1, width] each."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn heads x [N, heads, head_dim]; beyond `width` a head stays as it is."""
        turning, rest = x[..., : self.width], x[..., self.width :]
        half = self.width // 2
        turned = torch.cat([-turning[..., half:], turning[..., :half]], dim=-1)
        out = turning * cos + turned * sin
        return out if rest.shape[-1] == 0 else torch.cat([out, rest], dim=-1)


def _frequencies(config: Mapping[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """Return inverse frequencies [width / 2] and the factor of the tables, by transformers' own code."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    problem = rope_problem(config)
    if problem is not None:
        raise ConfigError(problem)
    config = plain_rope(config)
    # A copy, for transformers writes into what it gets.
    keys = copy.deepcopy({key: config[key] for key in _KEYS if config.get(key) is not None})
    parts = [keys, *(keys[name] for name in ("rope_scaling", "rope_parameters") if isinstance(keys.get(name), dict))]
    partial = [part.pop(_PARTIAL) for part in parts if part.get(_PARTIAL) is not None]
    width = int(head_dim * float(partial[-1])) if partial else head_dim
    made = LlamaConfig(hidden_size=width, num_attention_heads=1, head_dim=width, **keys)
    rotary = LlamaRotaryEmbedding(made)
    return rotary.inv_freq.detach().clone(), float(rotary.attention_scaling)
