"""Which tensors a head of a family consists of, by the names used here; knows no shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from specdec_nn.checkpoints.decoder import LAYER

Flavour = Literal["llama", "llama4", "mistral", "minicpm"]

EAGLE_1: Final = "eagle"
EAGLE_3: Final = "eagle3"
SECOND_NORMS: Final = "layernorms"  # the key of speculators' type eagle for norms of embedding and output
# Their names in such files, and in those that these were made of.
SECOND_NAMES: Final = tuple(
    f"{name}_layernorm.weight" for name in ("embedding", "pre_lm_head", "embed", "hidden", "lm_head")
)
FIRST: Final = "layers.0.input_layernorm.weight"
FINAL: Final = "norm.weight"
INPUT_NORM: Final = "input_norm.weight"
FC_NORM: Final = "fc_norm.{}.weight"


def switch(config: Mapping[str, Any], key: str) -> bool:
    """Return a switch of a configuration, at its top or inside `eagle_config`; False if it is in neither."""
    inner = config.get("eagle_config")
    value = config.get(key)
    if value is None and isinstance(inner, Mapping):
        value = inner.get(key)
    return bool(value)


def required(
    method: str, flavour: Flavour, config: Mapping[str, Any], num_layers: int, states: int, present: Collection[str]
) -> list[str]:
    """Return the names of blocks and norms; `states` is how many states of the target fc takes."""
    names = [f"layers.{i}.{name}" for i in range(num_layers) for name in LAYER]
    names += [f"layers.{i}.input_layernorm.weight" for i in range(1, num_layers)]
    if method == EAGLE_3:
        names += [FIRST, FINAL]
        names += [FC_NORM.format(j) for j in range(states)] if switch(config, "fc_norm") else []
        return names + ([INPUT_NORM] if switch(config, "norm_before_fc") else [])
    if flavour == "minicpm":
        return [*names, FIRST, "input_norm1.weight", "input_norm2.weight"]
    # These families keep both; a head that the method's own trainer made for one of them has neither.
    keeps = flavour in ("llama4", "mistral") and (FIRST in present or FINAL in present)
    return [*names, FIRST, FINAL] if keeps else names


def contradictions(config: Mapping[str, Any], present: Collection[str]) -> list[str]:
    """Return where the norms of an EAGLE-3 head and the switches of its configuration do not agree."""
    found = []
    if switch(config, "norm_before_fc") and switch(config, "fc_norm"):
        found.append("config.json sets norm_before_fc and fc_norm, which exclude each other")
    for key, name in (("norm_before_fc", INPUT_NORM), ("fc_norm", FC_NORM.format(0))):
        if name in present and not switch(config, key):
            found.append(f"it has {name}, and config.json does not set {key}")
    return found
