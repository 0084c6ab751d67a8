"""Rules of a draft's numbers that hosts and the conformance kit ask alike; knows arrays, no methods. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from specdec_core.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

SUM_TOLERANCE: Final = 1e-2  # how far a row of q may be from a sum of 1: drafters may compute it in a coarse dtype


def are_distributions(q: Tensor) -> bool:
    """Return whether each row of q [m, V] is a distribution, up to `SUM_TOLERANCE`; nan and inf fail."""
    return bool((q >= 0).all()) and bool(((q.sum(dim=-1, dtype=q.dtype) - 1).abs() < SUM_TOLERANCE).all())


def check_drawn(tokens: npt.NDArray[Any], q: Tensor, q_row: npt.NDArray[Any], d2t: Tensor | None, size: int) -> None:
    """Raise ContractError for a drafted id that has no positive probability in the row of q that it names.

    tokens, q_row [n]; q [m, V_d] on the CPU; d2t [V_d] or None; `size` is the number of target ids.
    """
    drawn = np.flatnonzero(q_row >= 0)
    columns: npt.NDArray[Any] = tokens[drawn]
    if d2t is not None:
        offsets = d2t.cpu().numpy()
        ids = np.arange(len(offsets)) + offsets
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
            message = f"d2t leads to target ids {int(ids.min())}..{int(ids.max())}, outside of 0..{size - 1}"
            raise ContractError(message)
        column = np.full(size, -1, np.int64)
        column[ids] = np.arange(len(ids))
        columns = column[columns]
    possible = columns >= 0
    possible[possible] = q.detach().numpy()[q_row[drawn[possible]], columns[possible]] > 0
    if not possible.all():
        at = int(drawn[int(np.argmin(possible))])
        message = f"draft {int(tokens[at])} has probability 0 in row {int(q_row[at])} of q, from which it was drawn"
        raise ContractError(message)


def check_siblings(tokens: npt.NDArray[Any], family: npt.NDArray[Any], q_row: npt.NDArray[Any] | None) -> None:
    """Raise ContractError for a point mass with the id of an earlier sibling; `family` [n] numbers each node's parent.

    A child drawn from q may repeat an earlier one: that is what independent draws do, and the repeated id counts once.
    """
    keys = family.astype(np.int64) << 32 | tokens.astype(np.int64)
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():
        return
    _, first = np.unique(keys, return_index=True)
    repeated = np.ones(len(tokens), np.bool_)
    repeated[first] = False
    if q_row is not None:
        repeated &= q_row < 0
    if repeated.any():
        message = f"siblings of a tree have the same id {int(tokens[int(np.argmax(repeated))])}"
        raise ContractError(message)


def check_order(parents: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Raise ContractError for a node [n] that does not come after its parent; return a number of each node's parent."""
    if len(lengths) == 1:
        own: npt.NDArray[np.int64] = np.arange(lengths[0])
    else:
        own = np.concatenate([np.arange(n) for n in lengths]) if len(lengths) else np.empty(0, np.int64)
    if (parents < -1).any() or (parents >= own).any():
        message = "a tree node must come after its parent, which is an earlier node of its row or -1"
        raise ContractError(message)
    first = np.cumsum(lengths) - lengths + np.arange(len(lengths))  # the number of each row's newest id
    family: npt.NDArray[np.int64] = np.repeat(first, lengths) + 1 + parents
    return family


def check_families(family: npt.NDArray[np.int64], q_row: npt.NDArray[Any], count: int) -> None:
    """Raise ContractError for drawn siblings of different distributions; `family` [n] is below `count`."""
    soft = q_row >= 0
    distribution = np.full(count, -1, np.int64)
    distribution[family[soft]] = q_row[soft]
    if np.any(distribution[family[soft]] != q_row[soft]):
        message = "sampled siblings of a tree must name the same row of q, the distribution of their parent"
        raise ContractError(message)


def is_on_device(values: Any) -> bool:
    """Return whether values are a tensor of another device than the CPU."""
    return getattr(getattr(values, "device", None), "type", "cpu") != "cpu"


def read(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Return tensors [n] of one device, integers or float32, as arrays of int32 and float32: one copy to the host."""
    import torch

    kinds = [np.float32 if tensor.is_floating_point() else np.int32 for tensor in tensors]
    packed = torch.stack([t.float().view(torch.int32) if t.is_floating_point() else t.int() for t in tensors])
    return [row.view(kind) for row, kind in zip(packed.cpu().numpy(), kinds, strict=True)]


def values_at(values: Any, index: npt.NDArray[np.int64]) -> Any:
    """Return the values at some places of an array, or of a tensor of any device without waiting for it."""
    if isinstance(values, np.ndarray):
        return values[index]
    import torch

    return values[torch.from_numpy(index).to(values.device, non_blocking=True)]


def check_confidence(confidence: npt.NDArray[Any]) -> None:
    """Raise ContractError unless each confidence is finite and in 0..1."""
    inside = (confidence >= 0) & (confidence <= 1)  # nan fails
    if not np.all(inside):
        message = f"confidence must be finite and in 0..1, got {confidence[int(np.argmin(inside))]}"
        raise ContractError(message)
