"""Static trees for methods with one head a place: the published ones by name, how an option gives one; no torch.

The authors of Medusa found each best for one of their models, and Hydra's took them over. Each is stored by numbers of
children: a tuple for each depth, beginning with the newest id's, that has one number for each node of the depth before
in order, zeros at its end left out. Source: `medusa_choices.py` of Medusa's own repository; every tree has 63 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from specdec_core.sources import Problem
from specdec_core.token_tree import Path, TokenTree, parse_tree

KEY: Final = "speculative_token_tree"
Counts = tuple[tuple[int, ...], ...]

CHOICES: Final[Mapping[str, Counts]] = MappingProxyType(
    {
        "mc_sim_7b_63": (
            (10,),
            (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
            (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1),
            (2,),
        ),
        "vicuna_7b_stage1": (
            (10,),
            (10, 7, 4, 3, 2, 2, 1, 1, 1, 1),
            (9, 3, 2, 1, 1, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1),
            (1,),
        ),
        "vicuna_7b_stage1_ablation": (
            (10,),
            (10, 4, 2, 2, 1, 1, 1),
            (10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3, 1, 0, 0, 1, 0, 1),
            (4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1),
        ),
        "vicuna_7b_stage2": (
            (10,),
            (10, 5, 2, 2, 1, 1, 1, 1),
            (9, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3, 1, 0, 0, 0, 1),
            (4, 1, 1, 0, 0, 0, 0, 0, 0, 1),
        ),
        "vicuna_13b_stage1": (
            (10,),
            (10, 7, 4, 2, 2, 1, 1, 1, 1),
            (10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 1),
            (1,),
        ),
        "vicuna_13b_stage2": (
            (10,),
            (10, 4, 2, 1, 1, 1),
            (10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3, 1, 0, 0, 1, 0, 1),
            (4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1),
        ),
        "vicuna_33b_stage1": (
            (10,),
            (10, 8, 5, 3, 2, 2, 1, 1, 1, 1),
            (9, 3, 2, 1, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1),
        ),
        "vicuna_33b_stage2": (
            (10,),
            (10, 5, 3, 2, 1, 1, 1, 1),
            (10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3, 1, 0, 0, 0, 1),
            (3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1),
        ),
        "zephyr_stage2": (
            (10,),
            (10, 6, 4, 2, 2, 1, 1, 1),
            (10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 1),
            (2, 1),
        ),
    }
)
NAMES: Final = tuple(CHOICES)


def named(name: str) -> tuple[Path, ...] | None:
    """Return the paths of a tree, breadth first, None if none has that name."""
    counts = CHOICES.get(name)
    return None if counts is None else paths_of(counts)


def paths_of(counts: Counts) -> tuple[Path, ...]:
    """Return the paths that numbers of children stand for."""
    paths: list[Path] = []
    parents: list[Path] = [()]
    for level in counts:
        # The nodes that a tuple leaves out have no children.
        parents = [(*parent, rank) for parent, count in zip(parents, level, strict=False) for rank in range(count)]
        paths += parents
    return tuple(paths)


def read_tree(value: Any) -> tuple[Path, ...] | None:
    """Return the paths that an option gives, breadth first: a name, or paths as `parse_tree` takes them; None for None.

    Raises ValueError for an unknown name, listing the known ones, and for paths that are no tree.
    """
    if isinstance(value, str) and value.strip().isidentifier():
        paths = named(value.strip())
        if paths is None:
            message = f"no tree has that name; there are {', '.join(NAMES)}, or give a list of paths"
            raise ValueError(message)
        return paths
    return None if value is None else parse_tree(value)


def problems_of_tree(paths: Sequence[Path], heads: int, rows: int) -> Iterator[Problem]:
    """Yield what is wrong with a tree, for so many heads that know `rows` ids each."""
    tree = TokenTree(tuple(paths))
    if tree.depth > heads:
        message = f"its deepest path has {tree.depth} ranks, and the checkpoint has {heads} heads"
        yield Problem(key=KEY, message=message, next_step="give a tree that is no deeper")
    widest = 1 + max(path[-1] for path in paths)
    if widest > rows:
        message = f"a node has {widest} children, and a head knows {rows} ids"
        yield Problem(key=KEY, message=message, next_step="give a narrower tree")
