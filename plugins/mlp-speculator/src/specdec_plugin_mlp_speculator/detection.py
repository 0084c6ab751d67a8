"""Is a checkpoint an MLP speculator; evidence is config.json and tensor names, never the path. No torch."""

from __future__ import annotations

from typing import Final

from specdec_core.sources import Detection, DraftSource
from specdec_plugin_mlp_speculator import names
from specdec_plugin_mlp_speculator.layout import SpeculatorReader
from specdec_plugin_mlp_speculator.settings import ARCHITECTURE, ARCTIC, OTHER_CLASS, architectures, names_speculator

METHOD: Final = "mlp_speculator"


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if nothing speaks for it or if it names another class."""
    said = names_speculator(draft.hf_config)
    others = [name for name in architectures(draft.hf_config) if name not in (ARCHITECTURE, *ARCTIC, OTHER_CLASS)]
    if others:
        return None
    if said:
        return Detection(method=METHOD, strength="certain", evidence=said)
    files = SpeculatorReader.names_of(draft)
    if not files:
        return None
    evidence = tuple(f"tensor {files[name]}" for name in names.evidence(files))
    return Detection(method=METHOD, strength="likely", evidence=evidence)
