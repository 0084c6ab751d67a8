"""Reads the keys of a DFlash or DSpark configuration, wherever its producer put them; knows no tensors. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SECTION: Final = "dflash_config"
SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"
MASK_KEYS: Final = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
ROPE_THETA: Final = 1e6  # of the families that these heads are made of, where config.json is silent
# transformers' own heads: never causal, their window counts the distance to the farthest key, their base is another.
OWN_TYPE: Final = "muse_glimmer_assistant"
OWN_ROPE_THETA: Final = 5e5


@dataclass(frozen=True)
class LayerAttention:
    """How rows of a block attend in one layer: `causal` to earlier rows alone; `window` positions far, None = all."""

    causal: bool
    window: int | None


def setting(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return a key of `dflash_config`, or else of `eagle_config`, or else of the top; null counts as left out."""
    for name in (SECTION, "eagle_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and inner.get(key) is not None:
            return inner[key]
    value = config.get(key)
    return default if value is None else value


def attention(config: Mapping[str, Any], num_layers: int) -> tuple[LayerAttention, ...]:
    """Return what each layer does, by docs/checkpoints.md. Raises ValueError saying which key is missing or wrong."""
    types = config.get("layer_types")
    if types is not None and (not _is_list(types) or len(types) < num_layers or set(types) - {SLIDING, FULL}):
        message = f"layer_types must name {SLIDING} or {FULL} for each of its {num_layers} layers, got {types!r}"
        raise ValueError(message)
    use_swa = bool(setting(config, "use_swa", False))
    if types is None or (use_swa and SLIDING not in types):
        sliding = [use_swa] * num_layers
    else:
        sliding = [kind == SLIDING for kind in types[:num_layers]]
    window = _window(config) if any(sliding) else None
    causal = _causal(config)
    in_order = [SLIDING == kind for kind in types[:num_layers]] if types is not None else [False] * num_layers
    return tuple(
        LayerAttention(by_type if causal is None else causal, window if slides else None)
        for slides, by_type in zip(sliding, in_order, strict=True)
    )


def _causal(config: Mapping[str, Any]) -> bool | None:
    """Return what holds for all layers, None if their types decide."""
    inner = config.get(SECTION)
    said = config.get("is_causal")
    if said is None and isinstance(inner, Mapping):
        said = inner.get("causal")
    if said is None:
        return False if config.get("model_type") == OWN_TYPE else None
    return bool(said)


def _window(config: Mapping[str, Any]) -> int:
    inner = config.get(SECTION)
    window = inner.get("swa_window_size") if isinstance(inner, Mapping) else None
    window = config.get("sliding_window") if window is None else window
    if not isinstance(window, int) or not _is_count(window):
        message = f"layers with a window need {SECTION}.swa_window_size or sliding_window, got {window!r}"
        raise ValueError(message)
    return window + (config.get("model_type") == OWN_TYPE)


def aux_layers(config: Mapping[str, Any], num_layers: int, draft_layers: int) -> tuple[tuple[int, ...], str]:
    """Return R_k indices, ascending, and why a list was not read as its name says, "" where it was.

    R_k is the target's residual stream after k of its decoder layers (arXiv 2503.01840, section 3.1).
    `target_layer_ids` counts the layer that a state leaves, so that j means R_{j + 1}; lists under EAGLE's names are
    R_k already. Not all producers keep to that: a list that leaves the target's range so, and fits in the other
    reading, is read in the other. Without a list, the default (docs/checkpoints.md) for as many layers as the head has.
    Raises ValueError.
    """
    inner = config.get(SECTION)
    inner = inner if isinstance(inner, Mapping) else {}
    places = (
        (config.get("eagle_aux_hidden_state_layer_ids"), 0, "eagle_aux_hidden_state_layer_ids"),
        (inner.get("target_layer_ids"), 1, f"{SECTION}.target_layer_ids"),
        (config.get("dspark_target_layer_ids"), 1, "dspark_target_layer_ids"),
        (config.get("target_layer_ids"), 1, "target_layer_ids"),
        (setting(config, "layer_ids"), 0, "layer_ids"),
    )
    listed = [(list(ids), add, where) for ids, add, where in places if _is_list(ids) and ids]
    total = config.get("num_target_layers")
    made_for = total if isinstance(total, int) and _is_count(total) else num_layers
    ids, add, where = listed[0] if listed else (default_layer_ids(made_for, draft_layers), 1, "the default")
    note, found, other = "", _states(ids, add), _states(ids, 1 - add)
    if listed and not _fit(found, num_layers) and _fit(other, num_layers):
        names = f"{where} {ids} names the states {list(found)}, not all within the target's 0 .. {num_layers}"
        note = f"{names}, so it is read as {list(other)}"
        found = other
    if not _fit(found, num_layers):
        message = f"it reads the states after {list(found)} layers ({where}), and the target has {num_layers}"
        raise ValueError(message)
    return found, note


def _states(ids: Sequence[int], add: int) -> tuple[int, ...]:
    return tuple(sorted({int(i) + add for i in ids}))


def _fit(states: Sequence[int], num_layers: int) -> bool:
    return all(0 <= k <= num_layers for k in states)


def default_layer_ids(num_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Return the layers of a target that a head of `draft_layers` layers reads by default (docs/checkpoints.md)."""
    if draft_layers == 1:
        return (num_layers // 2,)
    return tuple(round(1 + i * (num_layers - 4) / (draft_layers - 1)) for i in range(draft_layers))


def mask_token(config: Mapping[str, Any]) -> int | None:
    """Return the id in the places of unknown tokens, None if config.json has none (order of docs/checkpoints.md)."""
    for key in MASK_KEYS:
        value = setting(config, key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def block_size(config: Mapping[str, Any]) -> int | None:
    """Return the rows that the head was trained on, None if config.json gives none."""
    for key in ("block_size", "dspark_block_size"):
        value = setting(config, key)
        if _is_count(value):
            return int(value)
    return None


def samples_anchor(config: Mapping[str, Any], method_default: bool) -> bool:
    """Return whether the row of the newest id is a prediction already."""
    said = setting(config, "sample_from_anchor")
    if said is None and config.get("dspark_bonus_anchor") is not None:
        return not config["dspark_bonus_anchor"]
    return method_default if said is None else bool(said)


def drafts_of(size: int, *, from_anchor: bool) -> int:
    """Return how many drafts a block of `size` rows gives."""
    return size if from_anchor else size - 1


def rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with a rope_theta, wherever it or the family's own one stands."""
    inner = [config.get("rope_parameters"), config.get("rope_scaling")]
    if config.get("rope_theta") or any(isinstance(part, Mapping) and part.get("rope_theta") for part in inner):
        return dict(config)
    own = OWN_ROPE_THETA if config.get("model_type") == OWN_TYPE else ROPE_THETA
    return {**config, "rope_theta": own}


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
