"""The truncate op on a CPU: one pass finds the few ids that can survive, and only they are looked at closely.

A float32 without negative zeros has a key, an int32 in the same order, so that comparing, maxima and searching work on
integers. A cut is found digit by digit over the keys (radix select), by count for top-k and by weight for top-p. The
number of survivors is exact whatever the row looks like; a flat row only takes longer.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import prange
from torch import Tensor

from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.truncate.reference import (
    EXP_COEFFICIENTS,
    LEAST,
    LN2_HIGH,
    LN2_LOW,
    MANTISSA_BITS,
    ROUNDER,
    WEIGHT_BITS,
    Truncation,
    truncate_reference,
)
from specdec_nn.turns import one_at_a_time

STRETCH: Final = 64  # ids that are passed over together where the largest of them cannot survive
BINS: Final = 2048
SHIFTS: Final = (21, 10, 0)  # of the three digits of a key

_LOG2E, _ROUNDER, _HIGH, _LOW, _LEAST = (np.float32(x) for x in (LOG2E, ROUNDER, LN2_HIGH, LN2_LOW, LEAST))
_SCALE: Final = np.float32(2.0**MANTISSA_BITS)
_COEFFICIENTS: Final = tuple(np.float32(c) for c in EXP_COEFFICIENTS)
_LIFT: Final = WEIGHT_BITS - MANTISSA_BITS
_ZERO: Final = np.float32(0)
_MAGNITUDE: Final = np.int32(0x7FFFFFFF)
_LOWEST: Final = np.int32(-0x80000000)  # below every key
_BEYOND: Final = np.int32(0x7F800000)  # key of infinity
_NEVER: Final = np.float32(-np.inf)
_KEY_OF_NEVER: Final = np.int32(-0x7F800001)


@njit(nogil=True, error_model="numpy", inline="always")
def _key(bits: Any) -> Any:
    """Return the key of a float32 given as bits, or the bits of a key."""
    return bits ^ ((bits >> np.int32(31)) & _MAGNITUDE)


@njit(nogil=True, error_model="numpy", inline="always")
def _float(key: Any) -> Any:
    """Return the float32 that has a key."""
    return np.int32(_key(key)).view(np.float32)


@njit(nogil=True, error_model="numpy", inline="always")
def _weight(distance: Any) -> Any:
    """Return the weight of a distance to the largest logit, as `specdec_nn.ops.truncate.reference.weights` does."""
    d = distance if distance > _LEAST else _LEAST
    n = (d * _LOG2E + _ROUNDER) - _ROUNDER
    r = (d - n * _HIGH) - n * _LOW
    series = _COEFFICIENTS[0]
    for i in range(1, len(_COEFFICIENTS)):
        series = series * r + _COEFFICIENTS[i]
    mantissa = np.int64(np.int32(series * _SCALE))
    return (mantissa << _LIFT) >> min(np.int64(np.int32(-n)), np.int64(63))


@njit(nogil=True, error_model="numpy")
def _scale(logits: Any, temperature: Any, y: Any) -> None:
    for i in range(len(y)):
        y[i] = logits[i] / temperature + _ZERO


@njit(nogil=True, error_model="numpy")
def _largest(bits: Any, tops: Any) -> Any:
    """Write the largest key of each stretch to `tops` and return the largest of all."""
    whole = len(bits) // STRETCH
    for s in range(whole):
        top = _LOWEST
        for i in range(s * STRETCH, (s + 1) * STRETCH):
            top = max(top, _key(bits[i]))
        tops[s] = top
    if whole < len(tops):
        top = _LOWEST
        for i in range(whole * STRETCH, len(bits)):
            top = max(top, _key(bits[i]))
        tops[whole] = top
    top = _LOWEST
    for s in range(len(tops)):
        top = max(top, tops[s])
    return top


@njit(nogil=True, error_model="numpy")
def _total(y: Any, largest: Any) -> Any:
    """Return the sum of the weights of all ids."""
    total = np.int64(0)
    for i in range(len(y)):
        total += _weight(y[i] - largest)
    return total


@njit(nogil=True, error_model="numpy")
def _gather(bits: Any, tops: Any, cut: Any, keys: Any) -> Any:
    """Write all keys of at least `cut` to `keys` and return how many there are."""
    count = 0
    for s in range(len(tops)):
        if tops[s] >= cut:
            for i in range(s * STRETCH, min((s + 1) * STRETCH, len(bits))):
                key = _key(bits[i])
                keys[count] = key
                count += 1 if key >= cut else 0
    return count


@njit(nogil=True, error_model="numpy")
def _select(keys: Any, mass: Any, count: int, wanted: Any) -> Any:
    """Return (key, mass above it, ids that have it) where the mass from the largest key on reaches `wanted`.

    `keys` and `mass` are used up; of both the first `count` hold.
    """
    bins = np.empty(BINS, np.int64)
    above = np.int64(0)
    for shift in SHIFTS:
        bins[:] = 0
        for i in range(count):
            bins[((np.int64(keys[i]) + 0x80000000) >> shift) & (BINS - 1)] += mass[i]
        digit = BINS - 1
        while digit > 0 and above + bins[digit] < wanted:
            above += bins[digit]
            digit -= 1
        left = 0
        for i in range(count):
            keys[left], mass[left] = keys[i], mass[i]
            left += 1 if ((np.int64(keys[i]) + 0x80000000) >> shift) & (BINS - 1) == digit else 0
        count = left
    return keys[0], above, count


@njit(nogil=True, error_model="numpy")
def _key_of_floor(largest: Any, floor: Any) -> Any:
    """Return the least key whose logit's distance to the largest one is at least `floor`."""
    low, high = np.int64(_KEY_OF_NEVER), np.int64(_BEYOND)
    while low < high:
        middle = (low + high) >> 1
        if _float(np.int32(middle)) - largest >= floor:
            high = middle
        else:
            low = middle + 1
    return np.int32(low)


@njit(nogil=True, error_model="numpy")
def _top_k(bits: Any, tops: Any, k: int, keys: Any, mass: Any) -> Any:
    """Return the k-th largest key."""
    cut = _LOWEST
    if k <= len(tops):  # k stretches have a key of at least the k-th largest of their largest ones
        for s in range(len(tops)):
            keys[s], mass[s] = tops[s], 1
        cut = _select(keys, mass, len(tops), k)[0]
    count = _gather(bits, tops, cut, keys)
    mass[:count] = 1
    return _select(keys, mass, count, k)[0]


@njit(nogil=True, error_model="numpy")
def _top_p(y: Any, bits: Any, tops: Any, largest: Any, cut: Any, p: Any, keys: Any, mass: Any) -> Any:
    """Return (least key that survives, ids with it that do, ids with it) among keys of at least `cut`."""
    count, total = 0, np.int64(0)
    if cut <= _KEY_OF_NEVER:
        total = _total(y, largest)
        # What is left out weighs at most (1 - p) of the total. An id so light that all ids together would weigh no
        # more, were they as light, is left out; a little lighter still, since weights are rounded.
        least = max(np.float64(total) * (1.0 - p) / np.float64(len(y)) * 2.0**-WEIGHT_BITS, 2.0**-WEIGHT_BITS)
        count = _gather(bits, tops, _key_of_floor(largest, np.float32(np.log(least) - 0.01)), keys)
    else:
        count = _gather(bits, tops, cut, keys)
    for i in range(count):
        mass[i] = _weight(_float(keys[i]) - largest)
        total += mass[i] if cut > _KEY_OF_NEVER else 0
    wanted = min(max(np.int64(np.ceil(p * np.float64(total))), 1), total)
    key, above, equals = _select(keys, mass, count, wanted)
    weight = _weight(_float(key) - largest)
    return key, (wanted - above + weight - 1) // weight, equals


@njit(nogil=True, error_model="numpy")
def _cut(y: Any, bits: Any, cut: Any, stay: int, equals: int) -> None:
    """Write -inf below the key `cut`, and behind the first `stay` of the `equals` ids that have it."""
    for i in range(len(y)):
        y[i] = y[i] if _key(bits[i]) >= cut else _NEVER
    if stay < equals:
        for i in range(len(y)):
            if _key(bits[i]) == cut:
                y[i] = y[i] if stay > 0 else _NEVER
                stay -= 1


@njit(nogil=True, error_model="numpy")
def _truncate_row(logits: Any, temperature: Any, floor: Any, k: int, p: Any, y: Any, bits: Any) -> None:
    _scale(logits, temperature, y)
    vocabulary = len(y)
    if not (floor > _NEVER or 0 < k < vocabulary or p < 1.0):
        return
    tops = np.empty((vocabulary + STRETCH - 1) // STRETCH, np.int32)
    top = _largest(bits, tops)
    if not _KEY_OF_NEVER < top < _BEYOND:
        return
    largest = _float(top)
    keys, mass = np.empty(vocabulary + 1, np.int32), np.empty(vocabulary + 1, np.int64)
    cut = _KEY_OF_NEVER
    if floor > _NEVER:
        cut = max(cut, _key_of_floor(largest, floor))
    if 0 < k < vocabulary:
        cut = max(cut, _top_k(bits, tops, k, keys, mass))
    stay = equals = 0
    if p < 1.0:
        cut, stay, equals = _top_p(y, bits, tops, largest, cut, p, keys, mass)
    _cut(y, bits, cut, stay, equals)


@one_at_a_time
@njit(parallel=True, nogil=True, error_model="numpy")
def _truncate(logits: Any, temperature: Any, floor: Any, top_k: Any, top_p: Any, out: Any, bits: Any) -> None:
    for r in prange(len(logits)):
        _truncate_row(logits[r], temperature[r], floor[r], top_k[r], top_p[r], out[r], bits[r])


@njit(nogil=True, error_model="numpy")
def _truncate_one(logits: Any, temperature: Any, floor: Any, top_k: Any, top_p: Any, out: Any, bits: Any) -> None:
    _truncate_row(logits[0], temperature[0], floor[0], top_k[0], top_p[0], out[0], bits[0])


def truncate(logits: Tensor, truncation: Truncation) -> Tensor:
    """Return scaled logits [R, V] float32, -inf where truncated; see `truncate_reference` for arguments and meaning."""
    if logits.device.type != "cpu":
        return truncate_reference(logits, truncation)
    out = np.empty(tuple(logits.shape), np.float32)
    # Waking threads for a single row would cost more than it saves.
    kernel = _truncate_one if len(out) == 1 else _truncate
    kernel(
        logits.detach().float().contiguous().numpy(),
        truncation.temperature,
        truncation.floor,
        truncation.top_k,
        truncation.top_p,
        out,
        out.view(np.int32),
    )
    return torch.from_numpy(out)
