"""Does a checkpoint hold Hydra heads; evidence is config.json and tensor names, never the path. No torch."""

from __future__ import annotations

from typing import Final

from specdec_core.sources import Detection, DraftSource
from specdec_plugin_hydra.layout import KEYS, HydraReader

METHOD: Final = "hydra"


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if nothing speaks for it."""
    config = draft.hf_config
    named = tuple(f"{key} {config[key]!r}" for key in KEYS if key in config)
    files = HydraReader.names_of(draft)
    firsts = (next((n for n in sorted(files) if n.startswith(part)), None) for part in ("hydra_mlp.", "hydra_lm_head."))
    found = tuple(f"tensor {files[name]}" for name in firsts if name is not None)
    if not named and len(found) < 2:
        return None
    return Detection(method=METHOD, strength="certain" if named else "likely", evidence=(*named, *found))
