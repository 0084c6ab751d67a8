"""What a config.json has of Medusa heads, under the keys of any generation; no torch, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.sources import TargetInfo

MODEL_TYPE: Final = "medusa"
ARCHITECTURE: Final = "MedusaModel"
OWN: Final = "medusa_"  # how keys begin that old files add to those of a language model
LOOKAHEAD: Final = "num_lookahead_tokens"
NOT_HEADS: Final = ("attention", "key_value", "kv")  # heads of another kind, in files that hold the target too

Config = Mapping[str, Any]


def names_medusa(config: Config) -> tuple[str, ...]:
    """Return what in a config.json shows that these are Medusa heads: model_type or architectures."""
    said = []
    if config.get("model_type") == MODEL_TYPE:
        said.append(f"model_type {MODEL_TYPE!r}")
    names = config.get("architectures")
    names = [names] if isinstance(names, str) else names
    said += [f"architectures {[name]}" for name in names or () if str(name).startswith("Medusa")]
    return tuple(said)


def own_keys(config: Config) -> tuple[str, ...]:
    """Return the keys that only files with Medusa heads have."""
    return tuple(key for key in config if key.startswith(OWN))


def num_heads(config: Config) -> tuple[str, int] | None:
    """Return the number of heads that a config.json gives, with its key; None if it gives none.

    As vLLM reads it: any key with "num" and "heads" in it, the last of several; heads of attention apart. Keys of the
    method's own win over others, and `num_lookahead_tokens` is another name of the number.
    """
    keys = [key for key in config if "num" in key and "heads" in key and not any(no in key for no in NOT_HEADS)]
    return _last(config, keys) or _last(config, [LOOKAHEAD])


def num_layers(config: Config) -> tuple[str, int] | None:
    """Return the number of residual layers of a head that a config.json gives, with its key; None if it gives none.

    As vLLM reads it: any key with "num" and "layers" in it. In files of a language model only `medusa_` keys count.
    """
    keys = [key for key in config if "num" in key and "layers" in key and "heads" not in key]
    if "num_attention_heads" in config:
        keys = [key for key in keys if key.startswith(OWN)]
    return _last(config, keys, least=0)


def patch_of(hf_config: Config, target: TargetInfo) -> Config | None:
    """Return what of a config.json changes so that it is one of vLLM's for this target; None if nothing does."""
    config = hf_config
    new: dict[str, Any] = {"model_type": MODEL_TYPE, "vocab_size": target.vocab_size}
    if not names_medusa(config):
        new["architectures"] = [ARCHITECTURE]
    for key, said in (("num_heads", num_heads(config)), ("num_hidden_layers", num_layers(config))):
        if said is not None:
            new[key] = said[1]
    # A head that was cut stays so; one of the whole vocabulary has the target's, as vocab_size does.
    rows = config.get("truncated_vocab_size")
    if rows is not None and rows == config.get("vocab_size"):
        new["truncated_vocab_size"] = target.vocab_size
    patch = {key: value for key, value in new.items() if config.get(key) != value}
    return patch or None


def _last(config: Config, keys: list[str], least: int = 1) -> tuple[str, int] | None:
    own = [key for key in keys if key.startswith(OWN)]
    said = [(key, config[key]) for key in own or keys if type(config.get(key)) is int and config[key] >= least]
    return said[-1] if said else None
