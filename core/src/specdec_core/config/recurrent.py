"""What a target's config.json tells of layers that keep states: how many there are, and how large; loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.sources import language_config

FLOAT: Final = 4  # bytes; states are float32 whatever the model's dtype
OLDER_NAMES: Final = {"mamba": "linear_attention", "attention": "full_attention", "M": "linear_attention"}
STATEFUL: Final = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})

# Names of one figure in the families, in order of preference.
HEADS: Final = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
HEAD_DIM: Final = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
GROUPS: Final = ("mamba_n_groups", "mamba_ngroups", "n_groups")
STATE: Final = ("mamba_d_state", "ssm_state_size", "state_size")
TAPS: Final = ("mamba_d_conv", "conv_kernel", "conv_kernel_size")
EXPAND: Final = ("mamba_expand", "expand")


@dataclass(frozen=True)
class RecurrentStates:
    """Layers that keep states beside keys and values, or instead of them.

    layers       how many there are
    each         bytes of a request's states; None where the configuration does not tell
    each_row     bytes of each row of a request that may yet be taken back
    """

    layers: int
    each: int | None = None
    each_row: int | None = None

    def __str__(self) -> str:
        """Return one line for people."""
        size = "of a size that is known after loading"
        if self.each is not None:
            size = f"{self.each:,} bytes a request, and {self.each_row:,} for each draft of a step"
        return f"{self.layers} layers, {size}; chains only, no prefix reuse"


def states_of(hf_config: Mapping[str, Any]) -> RecurrentStates | None:
    """Return what a target's layers keep of each request, by its config.json; None for one without such layers."""
    config = language_config(hf_config)
    layers = _layers(config)
    if not layers:
        return None
    try:
        snapshot, row = _convolution(config) if "conv_L_cache" in config else _attention(config)
    except (KeyError, TypeError, ValueError):
        return RecurrentStates(layers)
    return RecurrentStates(layers, layers * snapshot * FLOAT, layers * row * FLOAT)


def trees_problem(method: str) -> str:
    """Return why a method that drafts trees cannot draft for a target with such layers."""
    return (
        f"{method} is set up to draft trees, and the target has layers that keep a recurrent state, which follows one "
        f"chain of rows"
    )


def _layers(config: Mapping[str, Any]) -> int:
    """Return how many layers keep a state."""
    total = int(config.get("num_hidden_layers") or 0)
    types = config.get("layer_types") or config.get("layers_block_type") or config.get("hybrid_override_pattern")
    if types:
        return sum(OLDER_NAMES.get(name, name) in STATEFUL for name in types)
    attention = config.get("full_attn_idxs") if "conv_L_cache" in config else config.get("attn_layer_indices")
    if attention is not None:
        return total - len(attention)
    if "linear_num_value_heads" in config:
        return total - total // int(config.get("full_attention_interval") or 4)
    if "mamba_d_state" in config and "attn_layer_period" in config:
        period, offset = int(config["attn_layer_period"]), int(config.get("attn_layer_offset") or 0)
        return sum(index % period != offset for index in range(total))
    keeps = "mamba_d_state" in config or ("state_size" in config and "conv_kernel" in config)
    return total if keeps else 0


def _convolution(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers that a short convolution keeps: of a request, and of a row."""
    width = int(config["hidden_size"])
    return (int(config["conv_L_cache"]) - 1) * width, width


def _attention(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers that linear attention or a state space keeps in one layer: of a request, and of a row."""
    if "linear_num_value_heads" in config:  # gated delta net; keys are kept for each head of values
        key, value = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
        heads = int(config["linear_num_value_heads"])
        channels = 2 * int(config["linear_num_key_heads"]) * key + heads * value
        taps = int(config.get("linear_conv_kernel_dim") or 4)
        return heads * key * value + (taps - 1) * channels, channels + heads * (key + value + 2)
    state, taps = _figure(config, STATE), _figure(config, TAPS)
    if any(name in config for name in HEADS):  # Mamba-2
        heads, width, groups = _figure(config, HEADS), _figure(config, HEAD_DIM), _figure(config, GROUPS)
        channels = heads * width + 2 * groups * state
        return heads * state * width + (taps - 1) * channels, channels + groups * state + heads * (width + 2)
    inner = int(config.get("intermediate_size") or 0) if "state_size" in config else 0
    inner = inner or _figure(config, EXPAND) * int(config["hidden_size"])  # Mamba-1
    return inner * state + (taps - 1) * inner, 3 * inner + state


def _figure(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the number under the first of the names that is there; raises KeyError without any."""
    found = [int(config[name]) for name in names if config.get(name) is not None]
    if not found:
        raise KeyError(names[0])
    return found[0]
