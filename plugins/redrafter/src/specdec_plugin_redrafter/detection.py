"""Is a checkpoint a recurrent drafter; evidence is config.json and tensor names, never the path. No torch."""

from __future__ import annotations

from typing import Final

from specdec_core.sources import Detection, DraftSource
from specdec_plugin_redrafter.layout import MODEL_TYPE, TENSORRT, RedrafterReader
from specdec_plugin_redrafter.names import OUTPUT, is_of_drafter_alone

METHOD: Final = "redrafter"


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if nothing speaks for it.

    Some old files have names that heads of another kind have as well; without the recurrent tensors or a config.json
    they are not claimed.
    """
    config = draft.hf_config
    said = [f"model_type {MODEL_TYPE!r}"] if config.get("model_type") == MODEL_TYPE else []
    said += [f"{key} {config[key]!r}" for key in config if key.startswith(TENSORRT)]
    files = RedrafterReader.names_of(draft)
    recurrent = [f"tensor {files[name]}" for name in ("rnn_u.weight", "rnn_w.weight") if name in files]
    is_whole = OUTPUT in files and (recurrent or is_of_drafter_alone(files[OUTPUT]))
    if not said and not is_whole:
        return None
    tensors = [*recurrent, *(f"tensor {files[name]}" for name in (OUTPUT,) if name in files)]
    return Detection(method=METHOD, strength="certain" if said or recurrent else "likely", evidence=(*said, *tensors))
