"""Copies and compares what ops take and return: arrays, tensors, numbers, sequences, mappings, objects with fields."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def frozen(value: Any) -> Any:
    """Return a copy whose numpy arrays cannot be written into, as those of a batch cannot."""
    if isinstance(value, np.ndarray):
        copied = np.array(value, order="C")
        copied.setflags(write=False)
        return copied
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(frozen(part) for part in value)
    return copy.deepcopy(value)


def difference(got: Any, expected: Any, tolerance: float = 0.0, place: str = "the result") -> str | None:
    """Return where and how two values differ, in words; None if they do not.

    Numbers in floating point may differ by `tolerance`, absolute or relative to the expected one; all else is equal.
    An array and a tensor of the same values are the same.
    """
    if _is_array(expected) or _is_array(got):
        return _array_difference(got, expected, tolerance, place)
    if isinstance(expected, float) and isinstance(got, (int, float)):
        same = got == expected or math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
        return None if same or (math.isnan(got) and math.isnan(expected)) else f"{place} is {got}, expected {expected}"
    parts = _parts(expected)
    if parts is None:
        return None if bool(got == expected) else f"{place} is {got!r}, expected {expected!r}"
    others = _parts(got)
    if others is None or list(others) != list(parts):
        return f"{place} is {type(got).__name__} with {list(others or ())}, expected {list(parts)}"
    found = (difference(others[key], part, tolerance, f"{place}, {key}") for key, part in parts.items())
    return next((text for text in found if text is not None), None)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, torch.Tensor, np.generic))


def _array_difference(got: Any, expected: Any, tolerance: float, place: str) -> str | None:
    one, two = _host(got), _host(expected)
    if one.shape != two.shape:
        return f"{place} has shape {list(one.shape)}, expected {list(two.shape)}"
    if two.dtype.kind != "f" or one.dtype.kind != "f":
        tolerance = 0.0
    same = np.isclose(one, two, rtol=tolerance, atol=tolerance, equal_nan=True) if tolerance else one == two
    if tolerance == 0.0 and two.dtype.kind == one.dtype.kind == "f":
        same |= np.isnan(one) & np.isnan(two)
    if bool(np.all(same)):
        return None
    at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    values = [np.atleast_1d(array)[at] for array in (one, two)]
    return f"{place} at {list(at)} is {values[0]}, expected {values[1]} (within {tolerance:g})"


def _host(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    return (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a compound value by name or place, None for a value of one piece."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return dict(enumerate(value))
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return None
