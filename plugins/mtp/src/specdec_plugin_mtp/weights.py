"""Reads the tensors of one MTP module out of a whole model's checkpoint: by name, dequantised, experts put together.

What they are for is the wiring's; where they are, and in which form, the checkpoint's names and dtypes say, and not
the quantization_config, which is often of the model's other layers alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource
from specdec_nn.checkpoints.weights import read_tensors

SCALE: Final = "_scale_inv"
BLOCK: Final = (128, 128)
PLAIN: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Endings of tensors that other quantised formats have in place of, or beside, a weight.
QUANTISED: Final = (
    *("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point"),
    *("weight_scale_2", "weight_global_scale", "weight_scale_inv", "gate_up_proj_blocks", "gate_up_proj_scales"),
)
HARMLESS: Final = ("rotary_emb.inv_freq",)  # made of config.json
LISTED: Final = 12

logger = logging.getLogger("specdec_plugin_mtp")


def prefix_of(source: DraftSource, part: str) -> str:
    """Return what stands in front of a part's name in the checkpoint, "model." say.

    Raises ConfigError unless there is exactly one such prefix.
    """
    ending = f"{part}.weight"
    names = [name for name in source.tensor_names if name == ending or name.endswith(f".{ending}")]
    prefixes = sorted({name.removesuffix(ending) for name in names})
    if len(prefixes) != 1:
        found = f"in {len(prefixes)} places ({', '.join(prefixes)})" if prefixes else "nowhere"
        message = f"{source.model!r} has {ending} {found}; one place was expected"
        raise ConfigError(message)
    return prefixes[0]


def read_module(
    source: DraftSource, prefixes: Sequence[str], apart: Sequence[str], quantization: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors under some prefixes by their whole names, in floating point; those of `apart` are not read.

    FP8 weights with scales of blocks (`*.weight_scale_inv`) are dequantised; `quantization` is the checkpoint's
    quantization_config. Raises ConfigError naming tensors of quantised formats that are not known here.
    """
    left_out = tuple(f"{name}." for name in apart)
    read = read_tensors(source, lambda name: name.startswith(tuple(prefixes)) and not name.startswith(left_out))
    size = quantization.get("weight_block_size") or BLOCK
    scales = [name for name in read if name.endswith(SCALE) and name.removesuffix(SCALE) in read]
    for name in scales:
        weight = name.removesuffix(SCALE)
        read[weight] = dequantised(weight, read[weight], read.pop(name), (int(size[0]), int(size[1])))
    strange = [n for n, t in read.items() if n.rpartition(".")[2] in QUANTISED or t.dtype not in PLAIN]
    if strange:
        message = (
            f"MTP modules of {source.model!r} are quantised in a way that is not known here: {listed(strange)}; "
            f"known are plain weights, and FP8 weights with a {SCALE.removeprefix('_')} for each block"
        )
        raise ConfigError(message)
    return read


def dequantised(name: str, weight: Tensor, scale: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the float32 weight [R, C] of an FP8 one: W[r, c] = w8[r, c] * s[r // size[0], c // size[1]].

    Raises ConfigError for a scale that is not [ceil(R / size[0]), ceil(C / size[1])].
    """
    blocks = [-(-length // block) for length, block in zip(weight.shape, size, strict=False)]
    if weight.ndim != 2 or list(scale.shape) != blocks:
        message = (
            f"{name} {list(weight.shape)} has scales {list(scale.shape)}, and blocks of {size[0]} x {size[1]} "
            f"(weight_block_size) make {blocks}"
        )
        raise ConfigError(message)
    rows = scale.float().repeat_interleave(size[0], dim=0)[: weight.shape[0]]
    return weight.float().mul_(rows.repeat_interleave(size[1], dim=1)[:, : weight.shape[1]])


def block_state(
    source: DraftSource, expected: Mapping[str, Tensor], tensors: dict[str, Tensor], prefix: str
) -> dict[str, Tensor]:
    """Return the state of a layer, taken out of `tensors`: names as in `expected`, which gives the shapes.

    A parameter that holds all experts is put together of the tensors of each. Raises ConfigError for tensors of
    another shape, and one listing everything that is missing.
    """
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    for name, like in expected.items():
        parts = [name] if prefix + name in tensors else _of_experts(name, len(like) if like.ndim else 0)
        lacking = [prefix + part for part in parts if prefix + part not in tensors]
        if lacking:
            missing += lacking
            continue
        made = _put_together(name, [tensors.pop(prefix + part) for part in parts], whole=parts == [name])
        if made.shape != like.shape:
            message = f"{prefix}{name} of {source.model!r} is {list(made.shape)}, expected {list(like.shape)}"
            raise ConfigError(message)
        state[name] = made
    refuse_missing(source, missing)
    return state


def refuse_missing(source: DraftSource, missing: Sequence[str]) -> None:
    """Raise ConfigError listing tensors that are not there, if any is not."""
    if missing:
        message = f"{source.model!r} lacks tensors of its MTP modules: {listed(missing)}; give a checkpoint with them"
        raise ConfigError(message)


def warn_of_unexpected(source: DraftSource, names: Iterable[str]) -> None:
    """Warn once of tensors that nothing has a use for."""
    unexpected = sorted(name for name in names if not name.endswith(HARMLESS))
    if unexpected:
        logger.warning(
            "tensors of the MTP modules of %r that nothing here has a use for are ignored: %s",
            source.model,
            listed(unexpected),
        )


def listed(names: Sequence[str]) -> str:
    """Return names in a row, the last of very many as their number."""
    more = len(names) - LISTED
    shown = ", ".join(sorted(names)[:LISTED])
    return shown if more <= 0 else f"{shown} and {more} more"


def _of_experts(name: str, experts: int) -> list[str]:
    """Return the names that a parameter of all experts has in files with one tensor an expert."""
    base, _, last = name.rpartition(".")
    singles = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
    if singles is None or not base.endswith("experts"):
        return [name]
    return [f"{base}.{expert}.{single}.weight" for expert in range(experts) for single in singles]


def _put_together(name: str, parts: list[Tensor], *, whole: bool) -> Tensor:
    """Return the parameter of all experts, [experts, out, in]; gate above up."""
    if whole:
        return parts[0]
    if name.endswith("gate_up_proj"):
        parts = [torch.cat(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return torch.stack(parts)
