"""Which states of the target an EAGLE-3 head reads, whatever the numbering of its producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdec_plugin_eagle.options import EagleOptions

KEY: Final = "eagle_aux_hidden_state_layer_ids"
INNER: Final = "eagle_config"
OTHER_NUMBERING: Final = {"input": "output", "output": "input"}
WORDS: Final = {"input": "layers that states enter", "output": "layers that states leave"}


@dataclass(frozen=True)
class AuxLayers:
    """R_k indices, ascending, and why a list was not read as its place says; "" where it was."""

    layers: tuple[int, ...]
    note: str = ""


def aux_layers(config: Mapping[str, Any], options: EagleOptions, num_layers: int, count: int) -> AuxLayers:
    """Return the states that a head reads: R_k is the residual stream after k decoder layers.

    The option wins over the configuration. A list at the top of config.json counts the layer that a state enters (R_j);
    one inside `eagle_config`, as SpecForge and SGLang write it, the layer that it leaves (R_{j + 1}). The option
    `aux_layer_numbering` overrides both. Producers do not agree on the places: where a list in config.json leaves the
    range that its place gives it and fits under the other numbering, it is read by that one. Without a list: the states
    that enter layers 2, L // 2 and L - 3.

    `count` is how many the head's fc takes. Raises ValueError saying what does not fit.
    """
    ids, numbering, where = _listed(config, options)
    note = ""
    if ids is None:
        found: tuple[int, ...] = default_layers(num_layers)
        where = f"the default for {num_layers} layers"
    else:
        chosen = options.aux_layer_numbering
        numbering = numbering if chosen == "auto" else chosen
        found = _states(ids, numbering)
        other = OTHER_NUMBERING[numbering]
        is_free = chosen == "auto" and options.eagle_aux_hidden_state_layer_ids is None
        if is_free and not _fit(found, num_layers) and _fit(_states(ids, other), num_layers):
            note = (
                f"{where} {list(ids)} names states outside of 0 .. {num_layers} if it counts the {WORDS[numbering]}, "
                f"so it is read as the {WORDS[other]} (aux_layer_numbering {other!r})"
            )
            found = _states(ids, other)
        elif not _fit(found, num_layers):
            where = f"{where} {list(ids)}, counted as the {WORDS[numbering]}"
    if not _fit(found, num_layers):
        message = f"aux layers {list(found)} ({where}) are not all within the target's 0 .. {num_layers}"
        raise ValueError(message)
    distinct = tuple(sorted(set(found)))
    if len(distinct) != count:
        message = f"fc.weight takes {count} states of the target, and {where} names {len(distinct)}: {list(distinct)}"
        raise ValueError(message)
    return AuxLayers(distinct, note)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return the states of heads that list none: those that enter layers 2, L // 2 and L - 3, in ascending order."""
    return tuple(sorted({2, num_layers // 2, num_layers - 3}))


def _states(ids: Sequence[int], numbering: str) -> tuple[int, ...]:
    return tuple(int(i) + (numbering == "output") for i in ids)


def _fit(states: Sequence[int], num_layers: int) -> bool:
    return all(0 <= k <= num_layers for k in states)


def _listed(config: Mapping[str, Any], options: EagleOptions) -> tuple[Sequence[int] | None, str, str]:
    """Return (ids or None, numbering, where they stand)."""
    if options.eagle_aux_hidden_state_layer_ids is not None:
        return options.eagle_aux_hidden_state_layer_ids, "input", f"the option {KEY}"
    if _is_list(config.get(KEY)):
        return config[KEY], "input", KEY
    inner = config.get(INNER)
    if isinstance(inner, Mapping):
        for key in (KEY, "layer_ids"):
            if _is_list(inner.get(key)):
                return inner[key], "output", f"{INNER}.{key}"
    return None, "input", ""


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
