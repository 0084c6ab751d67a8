"""The attention op on a GPU, in Triton; under TRITON_INTERPRET=1 the same kernels run on a CPU.

It launches what `launches` lays out with the tables of `device_tables`: two or three kernels for any ragged batch.
Nothing is read back from the device. A host that captures graphs puts tables that it has filled itself under TABLES in
the plans of the step that it captures with, and fills and uploads them before each replay.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_nn.ops.attention.device_tables import TABLES, DeviceTables, Sizes
from specdec_nn.ops.attention.launches import (
    LEAST,
    UNLIMITED,
    WIDEST,
    Geometry,
    Gpu,
    Launch,
    halves,
    largest_block,
    launches_of,
    power_of_2,
)
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference, rows_of
from specdec_nn.ops.attention.triton_kernels import HEADER, _attend, _join, _write
from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.ptx import PtxCase

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES: Final = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
OPTIONS: Final = {"enable_fp_fusion": True}  # of the compiler
COPIED: Final = 2048  # elements of a row that one program of the copying kernel takes

logger = logging.getLogger(__name__)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    step: AttentionStep,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Write k and v into the pages, then attend; see `attention_reference` for arguments, shapes and meaning.

    Sums are in float32, and weights are rounded to the dtype of the values before they are multiplied with them. What
    the kernels do not serve goes to the reference, and is logged once. Raises ConfigError for tensors on a CPU, unless
    Triton interprets.
    """
    if q.device.type == "cpu" and not INTERPRETED:
        message = (
            "attention.triton was given tensors on a CPU, where Triton runs only in its interpreter; set "
            "TRITON_INTERPRET=1 before the first import, or take attention.numba or attention.reference"
        )
        raise ConfigError(message)
    layer = Geometry(q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.element_size())
    reason = _unserved(layer, (q, k, v, k_pages, v_pages))
    if reason:
        _log_once(reason)
        return attention_reference(
            q, k, v, k_pages, v_pages, step, scaling=scaling, softcap=softcap, sinks=sinks, window=window
        )
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    if not len(out):
        return out
    tables = tables_of(step, q.device)
    launches = tables.launches.get(layer)
    if launches is None:
        launches = tables.launches[layer] = launches_of(tables.sizes, layer, gpu_of(q.device))
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    _copy(k, v, k_pages, v_pages, out, tables)
    for launch in launches:
        _launch(launch, layer, tables, (q, k_pages, v_pages, out, sinks), scaling, softcap, window)
    return out


def tables_of(step: AttentionStep, device: torch.device) -> DeviceTables:
    """Return the tables of a step: those that its host has put there, or new ones, made once for all layers."""
    tables: DeviceTables | None = step.plans.get(TABLES)
    if tables is None:
        tables = step.plans[TABLES] = DeviceTables.of(step, device)
    return tables


@functools.cache
def gpu_of(device: torch.device) -> Gpu:
    """Return what a layout depends on; a small one where Triton interprets, so that keys are split there too."""
    if device.type != "cuda":
        return Gpu(processors=8)
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", 99 * 1024)
    return Gpu(processors=found.multi_processor_count, shared=shared)


def _unserved(layer: Geometry, tensors: tuple[Tensor, ...]) -> str:
    """Return why the kernels cannot serve a call, "" if they can."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1 or not kinds <= set(DTYPES):
        return f"dtypes {', '.join(sorted(map(str, kinds)))}: there are kernels for one of float16, bfloat16, float32"
    if max(layer.dims, layer.width) > WIDEST:
        return f"keys of width {layer.dims} and values of width {layer.width}: at most {WIDEST}"
    if power_of_2(layer.group) > largest_block(layer):
        return f"{layer.group} query heads a kv head: at most {largest_block(layer)} for these widths and this dtype"
    if tensors[3].stride(3) != 1 or tensors[4].stride(3) != 1:
        return "pages whose last dimension is strided"
    return ""


@functools.cache
def _log_once(reason: str) -> None:
    logger.warning("attention.triton does not serve %s; the reference runs instead, which is slow", reason)


def _copy(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, out: Tensor, tables: DeviceTables) -> None:
    """Write keys and values into their slots, and zeros into the output of padding."""
    slots = tables.views()[3]
    rows, kv_heads, dims = k.shape
    width = v.shape[2]
    columns = [max(power_of_2(n), LEAST) for n in (dims, width)]
    heads = min(power_of_2(kv_heads), max(COPIED // max(columns), 1))
    _write[(rows, -(-kv_heads // heads))](
        k, v, k_pages, v_pages, out, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1), *_strides(k_pages),
        *_strides(v_pages), kv_heads, out.stride(0), DIMS=dims, D=columns[0], WIDTH=width, W=columns[1],
        PAGE=k_pages.shape[2], HEADS=heads, **OPTIONS,
    )  # fmt: skip


def _strides(pages: Tensor) -> tuple[int, int, int]:
    """Return the elements from page to page, head to head and key to key."""
    return pages.stride(0), pages.stride(1), pages.stride(2)


def _launch(
    launch: Launch,
    layer: Geometry,
    tables: DeviceTables,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    scaling: float,
    softcap: float | None,
    window: int | None,
) -> None:
    """Attend for the segments of a launch; tensors are q, k_pages, v_pages, out and sinks."""
    q, k_pages, v_pages, out, sinks = tensors
    bits, segments, pages, _ = tables.views()
    bits = bits.view(torch.int32)  # half as many registers as int64, two words each
    tile, words, count = launch.tile, tables.sizes.words, tables.sizes.segments
    split = launch.joined
    programs = count * launch.splits * launch.blocks
    partials = out
    if split:
        numbers = programs * layer.kv_heads * tile.block * (layer.width + HEADER)
        partials = torch.empty(numbers, dtype=torch.float32, device=out.device)
    reach = UNLIMITED if window is None else min(window, UNLIMITED)
    scale, cap = (scaling * LOG2E, 0.0) if not softcap else (2.0 * LOG2E * scaling / softcap, softcap * LOG2E)
    cuts = launch.blocks, launch.splits, launch.chunk, launch.least, launch.most, reach
    constants = _constants(launch, layer, words, reach) | {"SINKS": sinks is not None}
    sinks = out if sinks is None else sinks.contiguous()
    own = {
        "PAGE": k_pages.shape[2], "CAPPED": bool(softcap), "SPLIT": split, "STAGES": tile.stages,
        "NARROW": reach < 64 * words, "WIDEN": INTERPRETED and q.dtype is torch.bfloat16,
    }  # fmt: skip
    _attend[(programs, layer.kv_heads)](
        q, k_pages, v_pages, out, partials, sinks, bits, segments, pages, q.stride(0), q.stride(1), *_strides(k_pages),
        *_strides(v_pages), out.stride(0), tables.sizes.pages, 2 * words, *cuts, scale, cap,
        **constants, **_halves(layer), **own, num_warps=tile.warps, num_stages=tile.stages, **OPTIONS,
    )  # fmt: skip
    if split:
        _join[(count * launch.blocks * tile.block, layer.kv_heads)](
            out, partials, sinks, bits, segments, out.stride(0), 2 * words, *cuts, **constants, **OPTIONS
        )


def _constants(launch: Launch, layer: Geometry, words: int, reach: int) -> dict[str, Any]:
    """Return the constants that both kernels have, but for SINKS."""
    return {
        "GROUP": layer.group,
        "WIDTH": layer.width,
        "W": max(power_of_2(layer.width), LEAST),
        "M": launch.tile.block,
        "N": launch.tile.keys,
        "WINDOWED": reach < UNLIMITED,
        "TREES": words > 0,
        "EXACT": launch.chunk > 0,
        "PATHS": launch.chunk > 0 and words > 0,
        "ROWS": launch.rows,
    }


def _halves(layer: Geometry) -> dict[str, int]:
    first, second = halves(layer.dims)
    return {"DIMS": layer.dims, "D0": first, "D1": second}


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    return list(_cases())


# dtype, (heads, kv heads, key width, value width), rows of a segment, what the layer and the step have
_LAYERS: Final = (
    ("bf16", (32, 8, 128, 128), 1, ""),
    ("bf16", (32, 8, 64, 64), 8, "exact trees"),
    ("bf16", (32, 8, 128, 128), 33, "trees windowed sinks"),
    ("fp16", (8, 4, 256, 256), 512, "capped windowed"),
    ("bf16", (16, 16, 192, 128), 512, ""),
    ("fp16", (32, 32, 96, 96), 6, "trees narrow windowed"),
    ("fp32", (16, 4, 128, 128), 6, "trees"),
)


def _cases() -> Iterator[PtxCase]:
    for kind, (heads, kv_heads, dims, width), rows, features in _LAYERS:
        layer = Geometry(heads, kv_heads, dims, width, 4 if kind == "fp32" else 2)
        words, window = int("trees" in features), 48 if "narrow" in features else 128
        exact = "exact" in features
        sizes = Sizes(rows, 1, 256, words, min(rows, 16), rows if rows > 16 else 0, 8192, exact)
        launch = launches_of(sizes, layer, Gpu(shared=163 * 1024))[-1]
        label = f"{kind} {dims} {width} {rows} rows {features}".strip()
        constants = _constants(launch, layer, words, window if "windowed" in features else UNLIMITED)
        constants["SINKS"] = "sinks" in features
        types = {"fp32": "scale cap", "*i32": "bits segments pages", "*fp32": "partials"}
        types[f"*{kind}"] = f"q k_pages v_pages out sinks {types.get(f'*{kind}', '')}"
        own = {
            "PAGE": 32, "CAPPED": "capped" in features, "SPLIT": launch.joined, "STAGES": launch.tile.stages,
            "NARROW": "narrow" in features, "WIDEN": False,
        }  # fmt: skip
        options = OPTIONS | {"num_warps": launch.tile.warps, "num_stages": launch.tile.stages}
        strides = "q_row q_head k_page k_head k_key v_page v_head v_key out_row"
        yield PtxCase(_attend, types, constants | _halves(layer) | own, options, strides, label)
        if rows in (1, 8):
            joined = {f"*{kind}": "out sinks", "*fp32": "partials", "*i32": "bits segments"}
            yield PtxCase(_join, joined, constants, OPTIONS, "out_row", label)
    types = {"*bf16": "k v k_pages v_pages out", "*i32": "slots"}
    strides = "k_row k_from v_row v_from k_page k_head k_key v_page v_head v_key out_row"
    for dims, width in ((128, 128), (192, 128)):
        constants = {"DIMS": dims, "D": power_of_2(dims), "WIDTH": width, "W": power_of_2(width), "PAGE": 32}
        yield PtxCase(_write, types, constants | {"HEADS": 8}, OPTIONS, strides, f"{dims} {width}")
