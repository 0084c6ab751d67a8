"""Does a checkpoint hold Medusa heads; evidence is config.json and tensor names, never the path. No torch."""

from __future__ import annotations

from typing import Final

from specdec_core.sources import Default, Detection, DraftSource, TargetInfo
from specdec_plugin_medusa.layout import MedusaReader
from specdec_plugin_medusa.settings import names_medusa, own_keys

METHOD: Final = "medusa"


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if nothing speaks for it.

    Old files have no model_type: then the names of their tensors show it, or keys that only such files have.
    """
    config = draft.hf_config
    said = names_medusa(config)
    keys = own_keys(config)
    if said:
        return Detection(method=METHOD, strength="certain", evidence=said)
    tensors = _evidence(draft)
    if not tensors:
        return None
    named = tuple(f"{key} {config[key]!r}" for key in keys)
    return Detection(method=METHOD, strength="certain" if named else "likely", evidence=(*named, *tensors))


def default_model_of(target: TargetInfo) -> Default | None:
    """Return the target's own checkpoint if its config.json and its tensors show that the heads are in it."""
    if target.model is None or not own_keys(target.hf_config):
        return None
    if not _evidence(DraftSource(target.model, revision=target.revision)):
        return None
    return Default(key="model", value=target.model, reason="the heads are in the target's own checkpoint")


def _evidence(draft: DraftSource) -> tuple[str, ...]:
    """Return the tensors that only Medusa heads have: those of a head, and of its residual layers if it has some."""
    files = MedusaReader.names_of(draft)
    weights = sorted(name for name in files if name.endswith(".weight"))
    layer, head = (next((n for n in weights if n.startswith(part)), None) for part in ("blocks.", "lm_heads."))
    if head is None or not (layer or any("medusa" in file for file in files.values())):
        return ()
    return tuple(f"tensor {files[name]}" for name in (layer, head) if name is not None)
