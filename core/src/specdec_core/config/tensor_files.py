"""What files of tensors hold: names, shapes, dtypes and places, and the values of small whole numbers; no weights.

Safetensors are read from their headers alone; `.bin` and `.pt` need torch.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zipfile
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec_core.config import gguf_file
from specdec_core.errors import ConfigError

POINTER: Final = b"version https://git-lfs"
MAX_HEADER: Final = 100_000_000
# Dtypes in safetensors, as torch calls them.
DTYPES: Final[Mapping[str, str]] = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
# Whole numbers, by the code of the standard library's arrays.
WHOLE: Final[Mapping[str, str]] = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "B"}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in a file.

    shape  its lengths
    dtype  as torch calls it, "bfloat16" say; "" where the file's format has dtypes of its own
    file   where it is
    begin  the byte of the file at which its values begin, None where the format does not have them in one piece
    """

    shape: tuple[int, ...]
    dtype: str
    file: Path
    begin: int | None = None


def check_is_no_pointer(file: Path) -> None:
    """Raise ConfigError if git-lfs has left its pointer in the place of a file's content."""
    try:
        with file.open("rb") as stream:
            is_pointer = stream.read(len(POINTER)) == POINTER
    except OSError:  # whoever reads the content reports it
        return
    if is_pointer:
        message = (
            f"{file} is a git-lfs pointer and not the content itself; fetch it with 'git lfs pull' in its repository, "
            "or download the files from the Hub anew"
        )
        raise ConfigError(message)


def entries(files: Iterable[Path]) -> dict[str, TensorEntry]:
    """Return every tensor in the files, by name; raises ConfigError naming a file that cannot be read."""
    found: dict[str, TensorEntry] = {}
    for file in files:
        check_is_no_pointer(file)
        if file.suffix == gguf_file.ENDING:
            found.update((name, TensorEntry(shape, "", file)) for name, shape in gguf_file.read_shapes(file).items())
        else:
            found.update(_safetensors(file) if file.suffix == ".safetensors" else _torch(file))
    return found


def integers(name: str, entry: TensorEntry) -> list[int]:
    """Return the values of a tensor of whole numbers, flat; truth values are 0 and 1.

    Raises ConfigError for another dtype, and for a file that is cut short.
    """
    if entry.dtype not in WHOLE:
        message = f"{name} is {entry.dtype or 'of an unknown dtype'}, and whole numbers were expected"
        raise ConfigError(message)
    if entry.begin is None:
        return [int(value) for value in _load(entry.file, "cpu")[name].flatten().tolist()]
    values, count = array(WHOLE[entry.dtype]), math.prod(entry.shape)
    try:
        with entry.file.open("rb") as stream:
            stream.seek(entry.begin)
            values.frombytes(stream.read(count * values.itemsize))
    except (OSError, ValueError) as error:
        message = f"{name} of {entry.file} cannot be read ({error})"
        raise ConfigError(message) from error
    if len(values) < count:
        message = f"{entry.file} is not a whole safetensors file ({len(values)} of {count} values of {name} are there)"
        raise ConfigError(message)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _safetensors(file: Path) -> dict[str, TensorEntry]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(MAX_HEADER, file.stat().st_size):
                message = f"its header would be {length} bytes long"
                raise ValueError(message)
            text = stream.read(length)
            if len(text) < length:
                message = f"{len(text)} of {length} bytes of its header are there"
                raise ValueError(message)
            header = json.loads(text)
        return {
            name: TensorEntry(
                tuple(entry["shape"]),
                DTYPES.get(entry["dtype"], entry["dtype"]),
                file,
                8 + length + entry["data_offsets"][0],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        message = f"{file} is not a whole safetensors file ({error})"
        raise ConfigError(message) from error


def _torch(file: Path) -> dict[str, TensorEntry]:
    try:
        import torch
    except ImportError as error:
        message = f"{file}: names in this file can only be read with torch; install specdec-nn"
        raise ConfigError(message) from error
    return {
        str(name): TensorEntry(tuple(value.shape), str(value.dtype).removeprefix("torch."), file)
        for name, value in _load(file, "meta").items()
        if isinstance(value, torch.Tensor)
    }


def _load(file: Path, device: str) -> dict[Any, Any]:
    """Return what a file of torch's names; on the CPU, values are read from the file when they are asked for."""
    import torch

    try:
        state = torch.load(
            file, weights_only=True, map_location=device, mmap=device == "cpu" and zipfile.is_zipfile(file)
        )
    except Exception as error:  # unpickling raises whatever it likes
        cause = str(error).partition("\n")[0]
        message = f"{file} is no file of plain tensors ({type(error).__name__}: {cause})"
        raise ConfigError(message) from error
    if not isinstance(state, dict):
        message = f"{file} holds {type(state).__name__}, not named tensors"
        raise ConfigError(message)
    return state
