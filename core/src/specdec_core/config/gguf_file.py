"""What a .gguf file has of the model in it: figures under the names of a config.json, and its tensors' shapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from specdec_core.errors import ConfigError

ENDING: Final = ".gguf"
_FILE_ON_HUB = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)[/:]([\w][\w./ -]*\.gguf)")
_KIND_ON_HUB = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*):([\w-]+)")
# Keys of the file, behind the architecture's name, and those of config.json.
FIGURES: Final = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
}


def on_hub(model: str) -> tuple[str, str] | None:
    """Return hub id and file of a name such as `org/name/file.gguf` or `org/name:file.gguf`, None for other names.

    The file may lie in folders of the repository. Raises ConfigError for `org/name:Q4_K_M`, vLLM's way to name a kind
    of quantisation: which file that is, only the Hub can tell.
    """
    if model.startswith((".", "/", "~")):
        return None
    if (named := _FILE_ON_HUB.fullmatch(model)) is not None:
        return named[1], named[2]
    if (kind := _KIND_ON_HUB.fullmatch(model)) is not None:
        message = f"{model!r} names a kind of quantisation ({kind[2]}); name the file: {kind[1]}/<file>{ENDING}"
        raise ConfigError(message)
    return None


def read_config(file: Path) -> dict[str, Any]:
    """Return the model's figures; raises ConfigError without the package gguf, and for files that are no such file."""
    fields = _reader(file).fields
    if "general.architecture" not in fields:
        message = f"{file} names no architecture (general.architecture); is it a language model?"
        raise ConfigError(message)
    kind = str(fields["general.architecture"].contents())
    found = {name: fields[f"{kind}.{key}"].contents() for key, name in FIGURES.items() if f"{kind}.{key}" in fields}
    if "vocab_size" not in found and "tokenizer.ggml.tokens" in fields:
        found["vocab_size"] = len(fields["tokenizer.ggml.tokens"].data)
    config = {name: int(value) for name, value in found.items() if not isinstance(value, list)}
    return {"model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"], **config}


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor, rows first, by its name in the file."""
    return {str(t.name): tuple(int(size) for size in reversed(t.shape)) for t in _reader(file).tensors}


def _reader(file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        message = f"reading {str(file)!r} needs the package gguf: pip install 'specdec-nn[gguf]'"
        raise ConfigError(message) from error
    try:
        return GGUFReader(file)
    except Exception as error:  # the reader raises whatever it meets
        cause = str(error).partition("\n")[0]
        message = f"{file} is not a whole .gguf file ({type(error).__name__}: {cause})"
        raise ConfigError(message) from error
