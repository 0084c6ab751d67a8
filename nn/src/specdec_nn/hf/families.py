"""Which targets may run here: what a configuration rules out before any forward, with the reason in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from specdec_core.config.rope import model_rope_problem
from specdec_core.errors import TargetError

RUNNABLE_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
# Layers that keep a state, some with attention beside it; whether their mixer is one that can run here, the trial says.
STATE_TYPES = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})
# Layers in which no row sees another one.
ROW_TYPES = frozenset({"mlp", "moe"})
OLDER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}
# Rotary tables of these types depend on the largest position of a whole forward, unless each row says for which length
# of text it is.
BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def text_config(config: Any) -> Any:
    """Return the configuration of the text decoder, which multimodal models nest."""
    getter = getattr(config, "get_text_config", None)
    return getter(decoder=True) if callable(getter) else config


def check_config(
    config: Any, max_model_len: int, *, built: bool = True, by_row: bool = False, states: bool = False
) -> None:
    """Raise TargetError if the configuration names something that a flat ragged batch would compute wrongly.

    `built` means that it is an object of transformers' class, which has read all keys; `by_row` that the host tells the
    length of each row's text (`specdec_nn.hf.row_tables`); `states` that it keeps recurrent states and takes them back.
    """
    text = text_config(config)
    name = getattr(text, "model_type", type(text).__name__)
    if getattr(config, "is_encoder_decoder", False):
        message = f"model type {name!r} is an encoder-decoder; only decoder-only language models can run here"
        raise TargetError(message)
    runnable = RUNNABLE_LAYER_TYPES | ROW_TYPES | (STATE_TYPES if states else frozenset())
    for index, layer_type in enumerate(getattr(text, "layer_types", None) or ()):
        if OLDER_NAMES.get(layer_type, layer_type) not in runnable:
            message = (
                f"layer {index} of model type {name!r} is of type {layer_type!r}, which a flat ragged batch would "
                f"compute wrongly (state or chunks would mix across requests); layers must be of type "
                f"{' or '.join(sorted(runnable - ROW_TYPES))}"
            )
            raise TargetError(message)
    problem = model_rope_problem({"rope_parameters": getattr(text, "rope_parameters", None)}, built=built)
    if problem is not None:
        message = f"model type {name!r} cannot be built: {problem}"
        raise TargetError(message)
    for rope in () if by_row else _rope_parameters(text):
        _check_rope(rope, text, name, max_model_len)


def longest_text(config: Any, positions: int) -> int:
    """Return how long a text may be: the positions of the configuration, times the factor of type `dynamic`."""
    ropes = list(_rope_parameters(text_config(config)))
    if len(ropes) != 1 or ropes[0].get("rope_type") != "dynamic":
        return positions
    return max(positions, int(positions * float(ropes[0].get("factor") or 1.0)))


def data_problem(config: Mapping[str, Any], max_model_len: int) -> str | None:
    """Return what a config.json rules out already, None if nothing; what only its class adds is left to `check_config`.

    Needs neither torch nor transformers, so that a method can refuse a model before anything loads.
    """
    try:
        check_config(SimpleNamespace(**{str(key): value for key, value in config.items()}), max_model_len, built=False)
    except TargetError as error:
        return str(error)
    except (AttributeError, TypeError, ValueError):  # keys that only the class can read
        return None
    return None


def _rope_parameters(text: Any) -> Iterator[dict[str, Any]]:
    """Yield the rotary parameter sets: one, or one for each layer type."""
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    if isinstance(parameters, dict):
        nested = [value for value in parameters.values() if isinstance(value, dict)]
        yield from nested if nested and "rope_type" not in parameters else [parameters]


def _check_rope(rope: dict[str, Any], text: Any, name: str, max_model_len: int) -> None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in BATCH_DEPENDENT_ROPE:
        return
    original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    switch = int(original or text.max_position_embeddings)
    if max_model_len > switch:
        message = (
            f"model type {name!r} uses rotary type {kind!r}, whose table depends on the longest request of the batch, "
            f"so that a neighbour would change a request's text; set max_model_len to at most {switch}, below which "
            f"the table is fixed"
        )
        raise TargetError(message)


def expected_windows(config: Any, num_layers: int) -> list[int | None] | None:
    """Return the sliding window of each of so many attention layers, None where the configuration does not tell."""
    text = text_config(config)
    window = getattr(text, "sliding_window", None)
    layer_types = getattr(text, "layer_types", None)
    types = [OLDER_NAMES.get(name, name) for name in layer_types or ()]
    attending = [name for name in types if name not in ROW_TYPES and name not in {"linear_attention", "conv"}]
    if attending and len(attending) == num_layers:
        return [window if name in {"sliding_attention", "hybrid_sliding"} else None for name in attending]
    return None


def layers_of_rows(config: Any) -> frozenset[int]:
    """Return the numbers of the layers in which no row sees another one, by the configuration."""
    layer_types = getattr(text_config(config), "layer_types", None) or ()
    return frozenset(index for index, name in enumerate(layer_types) if name in ROW_TYPES)
