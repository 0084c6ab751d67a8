"""From what the caller names to a model and a tokenizer, with one clear error for what cannot be loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specdec.errors import TargetError

WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def resolve_device(device: str) -> torch.device:
    """Return the device; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        message = f"device={device!r} cannot be used: {first_line(error)}"
        raise TargetError(message) from None
    return chosen


def resolve_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """Return a torch dtype, or "auto" for the checkpoint's own."""
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "half": torch.float16}
    names |= {"float": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if dtype not in names:
        message = f"dtype={dtype!r} is unknown; expected 'auto', {', '.join(repr(n) for n in sorted(names))}"
        raise TargetError(message)
    return names[dtype]


def check_folder(model: str) -> None:
    """Raise TargetError if `model` is a local path without a configuration or without weights."""
    path = Path(model).expanduser()
    looks_local = path.exists() or model.startswith((".", "/", "~"))
    if not looks_local:
        return
    if not path.is_dir():
        message = f"model {model!r} is not a folder; expected a folder with config.json and weights, or a hub id"
        raise TargetError(message)
    if not (path / "config.json").is_file():
        message = f"model folder {model!r} has no config.json; is it the folder that save_pretrained wrote?"
        raise TargetError(message)
    if not any(next(path.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
        message = f"model folder {model!r} has a config.json but no weights ({', '.join(WEIGHT_PATTERNS)})"
        raise TargetError(message)


def load_model(model: str, dtype: Any, device: torch.device) -> nn.Module:
    """Load a causal language model for inference."""
    from transformers import AutoModelForCausalLM

    check_folder(model)
    try:
        with _quiet_unless_terminal():
            loaded: nn.Module = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    except Exception as error:  # readers of many formats, each with errors of its own
        message = f"model {model!r} cannot be loaded by transformers: {first_line(error)}"
        raise TargetError(message) from error
    return loaded.to(device).eval()


def load_tokenizer(model: str) -> Any | None:
    """Load the tokenizer that lies beside the weights, or return None if there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError):
        return None


def eos_ids(model: nn.Module, tokenizer: Any | None) -> frozenset[int]:
    """Return the ids that end a text: the generation configuration's, the model's and the tokenizer's."""
    found: set[int] = set()
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """Keep the progress bar of the weights off logs, and leave the setting as it was."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
