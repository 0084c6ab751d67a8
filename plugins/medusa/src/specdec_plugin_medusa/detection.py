"""Does a checkpoint hold Medusa heads; evidence is config.json and tensor names, never the path. No torch."""

from __future__ import annotations

from typing import Final

from specdec_core.errors import ConfigError
from specdec_core.sources import Default, Detection, DraftSource, TargetInfo
from specdec_plugin_medusa.names import Names, spelled
from specdec_plugin_medusa.settings import names_medusa, own_keys

METHOD: Final = "medusa"


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if nothing speaks for it.

    Old files have no model_type: then the names of their tensors say it, or keys that only such files have.
    """
    config = draft.hf_config
    said = names_medusa(config)
    keys = own_keys(config)
    if said:
        return Detection(method=METHOD, strength="certain", evidence=said)
    tensors = _evidence(_names(draft))
    if not tensors:
        return None
    named = tuple(f"{key} {config[key]!r}" for key in keys)
    return Detection(method=METHOD, strength="certain" if named else "likely", evidence=(*named, *tensors))


def default_model_of(target: TargetInfo) -> Default | None:
    """Return the target's own checkpoint if its config.json and its tensors say that the heads are in it."""
    if target.model is None or not own_keys(target.hf_config):
        return None
    if not _evidence(_names(DraftSource(target.model, revision=target.revision))):
        return None
    return Default(key="model", value=target.model, reason="the heads are in the target's own checkpoint")


def _names(draft: DraftSource) -> Names | None:
    try:
        return spelled(draft.tensor_names)
    except (ValueError, ConfigError):
        return None  # a checkpoint that cannot be read is nobody's; what is wrong is said by who is asked for it


def _evidence(names: Names | None) -> tuple[str, ...]:
    """Return the tensors that only Medusa heads have: those of a head, and of its residual layers if it has some."""
    if names is None or not names.heads:
        return ()
    first = [f"blocks.{head}.layers.{layer}.weight" for head, layer in sorted(names.layers)[:1]]
    first += [f"lm_heads.{head}.weight" for head in sorted(names.heads)[:1]]
    is_certain = bool(names.layers) or any("medusa" in name for name in names.files.values())
    return tuple(f"tensor {names.files[name]}" for name in first) if is_certain else ()
