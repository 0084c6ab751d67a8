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
from specdec_nn.checkpoints.fp8 import block_size, dequantized
from specdec_nn.checkpoints.reader import SCALE, Tensors, listed
from specdec_nn.checkpoints.weights import read_tensors
from specdec_plugin_mtp.shapes import LISTED, quantised

HARMLESS: Final = ("rotary_emb.inv_freq",)  # made of config.json

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
    size = block_size({"quantization_config": quantization})
    strange = quantised({name: str(tensor.dtype).removeprefix("torch.") for name, tensor in read.items()})
    if strange is not None:
        message = f"MTP modules of {source.model!r} are {strange}"
        raise ConfigError(message)
    for name in [name for name in read if name.endswith(SCALE)]:
        weight = name.removesuffix(SCALE)
        read[weight] = dequantized(weight, read[weight], read.pop(name), size)
    return read


class ModuleTensors(Tensors):
    """The tensors of one module, taken out one by one; whatever is wrong with them is raised together.

    left  tensors that nothing has taken so far, by their whole names
    """

    def __init__(self, source: DraftSource, tensors: dict[str, Tensor]) -> None:
        """Take the tensors by their whole names, which stay as they are."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        super().__init__(source.model, lambda: shapes, lambda names: ({name: name for name in names}, ()))
        self.left, self._missing = tensors, list[str]()

    def take(self, name: str, shape: tuple[int, ...], parts: Sequence[str] = ()) -> Tensor:
        """Return a tensor of that shape, put together of the tensors of each expert if `parts` names them.

        Where it is missing or has another shape, that is a problem, and what is returned must not be used.
        """
        lacking = self.missing(parts or [name])
        self._missing += lacking
        if not lacking:
            made = _put_together(name, [self.left.pop(part) for part in parts]) if parts else self.left.pop(name)
            if made.shape == shape:
                return made
            self.wrong(f"{name} is {list(made.shape)}, expected {list(shape)}")
        return torch.empty(shape, device="meta")

    def state(self, expected: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Return the state of a layer: names as in `expected`, which gives the shapes; `prefix` is in front of them."""
        state = {}
        for name, like in expected.items():
            whole = prefix + name
            parts = () if whole in self else _of_experts(whole, len(like) if like.ndim else 0)
            state[name] = self.take(whole, tuple(like.shape), parts)
        return state

    def check(self) -> None:
        """Raise one ConfigError listing everything that is missing or of another shape."""
        if self._missing:
            message = f"it lacks tensors of its MTP modules: {listed(self._missing, LISTED)}"
            self.wrong(message, "give a checkpoint with them")
        self.raise_problems()


def warn_of_unexpected(source: DraftSource, names: Iterable[str]) -> None:
    """Warn once of tensors that nothing has a use for."""
    unexpected = sorted(name for name in names if not name.endswith(HARMLESS))
    if unexpected:
        logger.warning(
            "tensors of the MTP modules of %r that nothing here has a use for are ignored: %s",
            source.model,
            listed(unexpected, LISTED),
        )


def _of_experts(name: str, experts: int) -> list[str]:
    """Return the names that a parameter of all experts has in files with one tensor an expert; [] of others."""
    base, _, last = name.rpartition(".")
    singles = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
    if singles is None or not base.endswith("experts"):
        return []
    return [f"{base}.{expert}.{single}.weight" for expert in range(experts) for single in singles]


def _put_together(name: str, parts: list[Tensor]) -> Tensor:
    """Return the parameter of all experts, [experts, out, in]; gate above up."""
    if name.endswith("gate_up_proj"):
        parts = [torch.cat(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return torch.stack(parts)
