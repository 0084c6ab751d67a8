"""Does a checkpoint hold a Kangaroo adapter; evidence is its tensors, never the path. No torch."""

from __future__ import annotations

from typing import Final

from specdec_core.sources import Detection, DraftSource
from specdec_plugin_kangaroo.layout import UNUSED, KangarooReader, required

METHOD: Final = "kangaroo"


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint of attention layers with one norm each and a final norm, and nothing else."""
    files = KangarooReader.names_of(draft)
    layers = len({name.split(".")[1] for name in files if name.startswith("layers.")})
    if not layers or set(files) != set(required(layers)):
        return None
    if len(files) < sum(UNUSED not in name for name in draft.tensor_names):
        return None
    evidence = f"tensors {files['layers.0.input_layernorm.weight']}, {files['layers.0.self_attn.q_proj.weight']}, ..."
    return Detection(method=METHOD, strength="likely", evidence=(evidence, "no MLP, no embedding and no head"))
