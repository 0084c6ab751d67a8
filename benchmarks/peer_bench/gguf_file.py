"""SmolLM2 as a .gguf file in bfloat16, for llama.cpp: the weights that the other libraries run, in a cache."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from smollm2 import cache_folder, gguf_file


def bfloat16_file() -> Path:
    """Return the file; it is complete or absent. Raises ImportError without the package gguf."""
    file = cache_folder() / "SmolLM2-135M-Instruct.bf16.gguf"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.{os.getpid()}.part")
        try:
            _convert(gguf_file(), beside)
            beside.replace(file)
        finally:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
    return file


def _convert(source: Path, out: Path) -> None:
    import gguf
    from gguf.quants import dequantize, quantize

    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = gguf.GGUFWriter(out, architecture.contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=part)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
