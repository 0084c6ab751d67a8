"""Static trees of ranks: the one given, or the one whose nodes are accepted most often; knows no table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from specdec_core.draft import IntArray
    from specdec_plugin_token_recycling.options import Path

# How often the candidate of a rank is the next id where its parent was right (SmolLM2 on Spec-Bench, warm).
RATES: Final = (0.42, 0.13, 0.07, 0.045, 0.03, 0.022, 0.017, 0.014)


def useful_paths(count: int, candidates: int) -> list[Path]:
    """Return the paths of the tree with `count` nodes that promises most accepted ids, the most useful first.

    A path is worth the product of its ranks' rates, which fall, so that a path stands after its own beginning.
    """
    rates = [RATES[min(rank, len(RATES) - 1)] / (1 + max(0, rank - len(RATES) + 1)) for rank in range(candidates)]
    made: list[tuple[Path, float]] = [((), 1.0)]
    used = [0]
    while len(made) <= count:
        worth = [w * rates[u] if u < candidates else 0.0 for (_, w), u in zip(made, used, strict=True)]
        whose = worth.index(max(worth))
        made.append(((*made[whose][0], used[whose]), worth[whose]))
        used[whose] += 1
        used.append(0)
    return [path for path, _ in made[1:]]


def as_array(paths: Sequence[Path]) -> IntArray:
    """Return paths as [2, nodes] int32: the parent of each node, -1 = the newest id, and its rank."""
    place: dict[Path, int] = {(): -1}
    columns = []
    for node, path in enumerate(paths):
        columns.append((place[path[:-1]], path[-1]))
        place[path] = node
    return np.ascontiguousarray(np.array(columns, np.int32).reshape(-1, 2).T)


def template_of(shape: str, given: Sequence[Path] | None, count: int, candidates: int) -> IntArray | None:
    """Return the template of a static tree or a chain of at most `count` nodes; None for a dynamic tree."""
    if shape == "dynamic":
        return None
    if shape == "chain":
        return as_array([(0,) * depth for depth in range(1, count + 1)])
    return as_array(useful_paths(count, candidates) if given is None else given)
