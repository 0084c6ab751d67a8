"""What a config.json has of an MLP speculator, under the keys of any trainer; no torch, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_nn.checkpoints.speculators import TYPE, is_of_type

MODEL_TYPE: Final = "mlp_speculator"
ARCHITECTURE: Final = "MLPSpeculatorPreTrainedModel"
# Of Arctic's speculators: the first is an MLP speculator, the others have a recurrence that "method" names.
ARCTIC: Final = (
    "ArcticMLPSpeculatorPreTrainedModel",
    "ArcticLSTMSpeculatorPreTrainedModel",
    "MLPVariantSpeculatorPreTrainedModel",
)
OTHER_TYPE: Final = "mlp"  # of the speculators format, and its class
OTHER_CLASS: Final = "MLPSpeculator"
TOP_K: Final = "top_k_tokens_per_head"
# The key as vLLM spells it, and other spellings that trainers have written.
SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "emb_dim": ("hidden_size",),
    "n_predict": ("num_lookahead_tokens",),
    "tie_weights": ("tie_wts",),
    TOP_K: ("top_k_tokesns_per_head",),
}
COUNTS: Final = ("n_predict", "vocab_size", "n_candidates", "input_hidden_dim")
WIDTHS: Final = ("emb_dim", "inner_dim", "proj_dim")  # Arctic writes "4096", and "4096.4096" for layers on each other
FLAGS: Final = ("tie_weights", "scale_input", "tie_lstm_embs")
RECURRENCE: Final = "method"
RNN: Final = "sum_rnn"
LSTM: Final = "sum_lstm"

Config = Mapping[str, Any]


def names_speculator(config: Config) -> tuple[str, ...]:
    """Return what in a config.json shows that this is an MLP speculator; `architectures` may be a bare text."""
    said = [f"model_type {MODEL_TYPE!r}"] if config.get("model_type") == MODEL_TYPE else []
    own = [name for name in architectures(config) if name in (ARCHITECTURE, *ARCTIC)]
    if own:
        said.append(f"architectures {own}")
    if is_of_type(config, (OTHER_TYPE,)):
        said.append(f"{TYPE} {OTHER_TYPE!r}")
    return tuple(said)


def architectures(config: Config) -> list[str]:
    """Return the class names of a config.json, which some trainers write as a bare text."""
    names = config.get("architectures") or []
    return [names] if isinstance(names, str) else [str(name) for name in names]


def spelled(config: Config) -> dict[str, Any]:
    """Return a config.json under vLLM's spellings; a key that is there under its own name stays as it is."""
    plain = dict(config)
    for key, others in SPELLINGS.items():
        for other in others:
            if plain.get(key) is None and plain.get(other) is not None:
                plain[key] = plain[other]
    if isinstance(plain.get("architectures"), str):
        plain["architectures"] = architectures(config)
    plain |= {key: width_of(plain[key]) for key in WIDTHS if plain.get(key) is not None}
    return plain


def width_of(value: object) -> object:
    """Return a width that is written as one number as that number, any other value as it is."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def patch_of(hf_config: Config) -> Config | None:
    """Return the keys that are spelled otherwise than in vLLM, None if none is."""
    plain = spelled(hf_config)
    # The width of the state, where the file says that it is that of the target.
    if plain.get("inner_dim") == 0 and type(plain.get("emb_dim")) is int:
        plain["inner_dim"] = plain["emb_dim"]
    return {key: value for key, value in plain.items() if hf_config.get(key) != value} or None


def mistakes(config: Config) -> list[str]:
    """Return the keys of a spelled config.json whose values are of the wrong kind, in words."""
    found = []
    for key in (*COUNTS, *WIDTHS):
        value, least = config.get(key), 0 if key == "inner_dim" else 1
        if key in WIDTHS and is_stack(value):
            found.append(f"its config.json has {key} {value!r}: several layers for one, which are not built here")
        elif value is not None and (type(value) is not int or value < least):
            found.append(f"its config.json has {key} {value!r}, and that is a whole number of at least {least}")
    for key in FLAGS:
        value = config.get(key)
        if value is not None and not isinstance(value, bool):
            found.append(f"its config.json has {key} {value!r}, and that is true or false")
    if config.get(RECURRENCE) not in (None, RNN, LSTM):
        found.append(f"its config.json has {RECURRENCE} {config[RECURRENCE]!r}, and known are {RNN} and {LSTM}")
    return found


def is_stack(value: object) -> bool:
    """Return whether a value names the widths of several layers, "a.b" or a list."""
    return isinstance(value, list) or (isinstance(value, str) and "." in value)
