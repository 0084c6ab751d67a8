"""Where a checkpoint is, which files it has and what its JSON holds; tensors are read elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from specdec_core.config import gguf_file, tensor_files
from specdec_core.errors import ConfigError

INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
TORCH_SUFFIXES: Final = (".bin", ".pt", ".pth")
NOT_WEIGHTS: Final = frozenset(
    {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "mask_embedding.pt"}
)
ADAPTER: Final = "adapter_config.json"
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?\Z")


def locate(model: str, patterns: Sequence[str] | None = None, revision: str | None = None) -> Path:
    """Return the local path that a name stands for, fetching a hub id that is no local path (only files of `patterns`).

    A .gguf file of a hub (`gguf_file.on_hub`) is fetched whole. `revision` is the branch, tag or commit of a hub id,
    None for its main branch; a local path has none. Raises ConfigError for what is neither a file, nor a folder, nor
    could be downloaded from the Hub.
    """
    path = Path(model).expanduser()
    if path.exists():
        return path
    file = gguf_file.on_hub(model)
    if file is None and not _HUB_ID.match(model):
        message = f"there is no folder or file {model!r}"
        raise ConfigError(message)
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
    except ImportError as error:
        message = f"there is no folder {model!r}; to fetch it from the hub: pip install huggingface_hub"
        raise ConfigError(message) from error
    at: dict[str, Any] = {} if revision is None else {"revision": revision}
    try:
        if file is not None:
            return Path(hf_hub_download(*file, **at))
        return Path(snapshot_download(model, allow_patterns=None if patterns is None else list(patterns), **at))
    except Exception as error:  # the hub's client raises a dozen classes for offline, gated, missing, malformed
        cause = str(error).partition("\n")[0]
        what = repr(model) if revision is None else f"{model!r} at revision {revision!r}"
        reason = f"{type(error).__name__}: {cause}"
        message = f"{what} is no local folder and could not be downloaded from the Hub ({reason})"
        raise ConfigError(message) from error


def adapter_problem(folder: Path) -> str | None:
    """Return why a folder is no model but an adapter (LoRA and the like) for one, None if it is not."""
    file = folder / ADAPTER
    if not file.is_file() or (folder / "config.json").is_file():
        return None
    said = read_json_object(file)
    base, kind = said.get("base_model_name_or_path"), said.get("peft_type") or "PEFT"
    return (
        f"is a {kind} adapter for {base!r} ({ADAPTER}) and not a model; merge it into that model (merge_and_unload of "
        "the package peft, then save_pretrained) and give the folder of the result"
    )


def read_json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raises ConfigError naming file, line and column of what does not parse."""
    tensor_files.check_is_no_pointer(file)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        message = f"{file} is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise ConfigError(message) from error
    except (OSError, UnicodeDecodeError) as error:
        message = f"{file} cannot be read: {error}"
        raise ConfigError(message) from error
    if not isinstance(data, dict):
        message = f"{file} holds {type(data).__name__}, not a JSON object"
        raise ConfigError(message)
    return data


def weight_files(path: Path) -> list[Path]:
    """Return the files with tensors: the path itself, or a folder's safetensors, or else its torch files."""
    if path.is_file():
        return [path] if path.suffix in (".safetensors", gguf_file.ENDING, *TORCH_SUFFIXES) else []
    found = sorted(path.glob("*.safetensors"))
    if found:
        return found
    candidates = (file for file in sorted(path.iterdir()) if file.suffix in TORCH_SUFFIXES)
    return [file for file in candidates if file.is_file() and file.name not in NOT_WEIGHTS]


def weight_map(path: Path) -> dict[str, str] | None:
    """Return the file of each tensor by a folder's index, None without an index; raises ConfigError for a wrong one."""
    for index in INDEXES:
        file = path / index
        if path.is_dir() and file.is_file():
            names = read_json_object(file).get("weight_map")
            if isinstance(names, dict):
                return names
            message = f"{file} has no weight_map"
            raise ConfigError(message)
    return None


def tensor_names(path: Path, files: Iterable[Path]) -> frozenset[str]:
    """Return the names of all tensors: from a folder's index if it has one, else from the files."""
    places = weight_map(path)
    return frozenset(tensor_files.entries(files) if places is None else places)
