"""Puts the weights of a loaded model side by side into large pages of memory; knows nothing of what they are for.

Every forward reads all weights, and with pages of 4 KiB a good part of that time goes into finding the pages. Files are
mapped in such pages, and at whatever place a tensor has in them.
"""

from __future__ import annotations

import itertools
import logging
import mmap
from typing import Final

import torch
from torch import Tensor, nn

LARGE: Final = 1 << 21
LINE: Final = 64  # bytes of a cache line, which every weight begins with

logger = logging.getLogger("specdec_nn")


def to_large_pages(model: nn.Module) -> int:
    """Move the parameters of a model on the CPU that nobody else uses; return the bytes moved.

    Each parameter stays the object that it is, ties included, with memory of its own, and what it had is let go. 0
    where the system has no large pages to ask for, and for a model with other parameters than plain ones.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return 0
    parameters = sorted((p for p in model.parameters() if p.numel()), key=lambda p: p.data_ptr())
    if not parameters or not all(map(_is_plain, parameters)) or _overlap(parameters):
        return 0
    places = list(itertools.accumulate((-(-_bytes(p) // LINE) * LINE for p in parameters), initial=0))
    memory = mmap.mmap(-1, places[-1] + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:  # a kernel without them
        logger.debug("weights stay in small pages: %s", error)
        memory.close()
        return 0
    first = -torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr() % LARGE
    for parameter, place in zip(parameters, places[:-1], strict=True):
        room = torch.frombuffer(memory, dtype=parameter.dtype, count=parameter.numel(), offset=first + place)
        parameter.data = room.view(parameter.shape).copy_(parameter.data)
    return places[-1]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_plain(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a whole tensor on the CPU and no more: not quantised, shared, or sharded."""
    plain = type(parameter) is nn.Parameter and type(parameter.data) is Tensor and parameter.layout is torch.strided
    if not plain or parameter.device.type != "cpu" or not parameter.is_contiguous():
        return False
    shared: bool = parameter.is_shared()  # type: ignore[no-untyped-call] # torch has no type for it
    return not shared


def _overlap(parameters: list[nn.Parameter]) -> bool:
    """Return whether some of these, in order of address, are views of others."""
    pairs = itertools.pairwise(parameters)
    return any(one.data_ptr() + _bytes(one) > other.data_ptr() for one, other in pairs)
