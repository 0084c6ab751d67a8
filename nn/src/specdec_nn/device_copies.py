"""Copies between host arrays and a device: several as one, and no wait but that for what is read; it computes nothing.

On the CPU nothing is copied: tensors and arrays share their memory. On a GPU a copy to the device that is not asked for
as `non_blocking` waits for all that the device has been given to do, and so does each read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
ALIGNMENT: Final = 16  # bytes: an array of any dtype may begin there
_capturing = threading.local()


@contextmanager
def no_copies() -> Iterator[None]:
    """Raise RuntimeError for every copy of this thread inside, as while work is captured to be done again.

    A captured copy would bring the same numbers each time, whatever the array has become, and nothing would tell.
    """
    _capturing.on = True
    try:
        yield
    finally:
        _capturing.on = False


def _check() -> None:
    if getattr(_capturing, "on", False):
        message = "what is captured copies an array of the host, which a replay would not read again"
        raise RuntimeError(message)


def to_device(array: Array, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device, without waiting for the device."""
    _check()
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def all_to_device(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """Return arrays as tensors on a device, which share one piece of memory there: one copy, out of pinned memory."""
    _check()
    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    starts, size = _places([array.nbytes for array in arrays])
    # The memory is not given out again before the copy is through: torch's allocator of pinned memory sees to that.
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    bytes_of = packed.numpy()
    for array, start in zip(arrays, starts, strict=True):
        bytes_of[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = packed.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(_dtype(array)).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    ]


def read(tensors: Sequence[Tensor]) -> list[Array]:
    """Return tensors of one device as arrays, by one copy to the host, for which it waits."""
    _check()
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    packed = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]).cpu().numpy()
    ends = np.cumsum(sizes).tolist()
    return [
        packed[end - size : end].copy().view(_numpy_dtype(tensor)).reshape(tuple(tensor.shape))
        for tensor, size, end in zip(tensors, sizes, ends, strict=True)
    ]


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where pieces of so many bytes begin, in sequence, and where the last one ends."""
    starts, at = [], 0
    for size in sizes:
        starts.append(at)
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, at


def _dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def _numpy_dtype(tensor: Tensor) -> np.dtype[Any]:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def columns_of(values: Any, index: Sequence[int] | Array) -> Any:
    """Return some columns of an array, or of a tensor [n, m] without waiting for its device."""
    if isinstance(values, np.ndarray) or values.device.type == "cpu":
        return values[:, index]
    return values[:, to_device(np.asarray(index, np.int64), values.device)]


def side_by_side(parts: Sequence[Any]) -> Any:
    """Return arrays [n, m], or tensors of one device, as one with all their columns."""
    return np.concatenate(parts, 1) if isinstance(parts[0], np.ndarray) else torch.cat(list(parts), 1)
