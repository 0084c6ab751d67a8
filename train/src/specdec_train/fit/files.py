"""Files of a run, each replaced in one step: a process that is killed leaves the old one or the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from specdec_core.errors import RequestError
from specdec_core.training import TrainedHead
from specdec_train.replacing import replace_file

CHECKPOINT: Final = "checkpoint.pt"
EXPORT: Final = "export"


def write_json(file: Path, value: Any) -> None:
    """Write a value as JSON."""
    text = json.dumps(value, indent=1) + "\n"
    replace_file(file, lambda new: new.write_text(text, encoding="utf-8"))


def write_head(folder: Path, head: TrainedHead) -> None:
    """Write config.json and model.safetensors of a head into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in head.tensors.items()}
    replace_file(folder / "model.safetensors", lambda new: save_file(tensors, new, metadata={"format": "pt"}))
    write_json(folder / "config.json", dict(head.config))


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write the state of a run."""
    replace_file(folder / CHECKPOINT, lambda new: torch.save(state, new))


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the state of a run, None where none was written yet. Raises RequestError for a file that is spoilt."""
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = torch.load(file, weights_only=True)
    except Exception as error:  # whatever the unpickling of a spoilt file raises
        message = f"{file} cannot be read ({type(error).__name__}); remove it to begin the run again"
        raise RequestError(message) from error
    return found
