"""Static token trees: from paths, as a user writes them, to nodes in breadth-first order; it picks no tokens."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Path = tuple[int, ...]


def parse_tree(value: Any) -> tuple[Path, ...]:
    """Return the paths of a tree, sorted breadth first, from a text such as "[(0,), (0, 0)]" or from lists.

    Text is read as literals and never run. Raises ValueError naming the first path that cannot stand in a tree: not
    whole numbers of at least 0, twice, without its parent, or with a rank below it missing among its siblings.
    """
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
            message = f"expected a list of paths such as [(0,), (0, 0), (1,)], got the text {value!r:.80}"
            raise ValueError(message) from error
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        message = f"expected a list of paths such as [(0,), (0, 0), (1,)], got {value!r:.80}"
        raise ValueError(message)
    paths = [_path(entry) for entry in value]
    known: set[Path] = set()
    for path in sorted(paths, key=lambda p: (len(p), p)):
        parent, rank = path[:-1], path[-1]
        if path in known:
            problem = "is there twice"
        elif parent and parent not in known:
            problem = f"has no parent: {parent} is not in the tree"
        elif rank and (*parent, rank - 1) not in known:
            problem = f"skips a rank: {(*parent, rank - 1)} is not in the tree"
        else:
            known.add(path)
            continue
        message = f"the path {path} {problem}"
        raise ValueError(message)
    return tuple(sorted(known, key=lambda p: (len(p), p)))


def _path(entry: Any) -> Path:
    whole = isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) > 0
    if not whole or not all(type(rank) is int and rank >= 0 for rank in entry):
        message = f"a path is a list of ranks, whole numbers of at least 0; one is {entry!r}"
        raise ValueError(message)
    return tuple(entry)


@dataclass(frozen=True)
class TokenTree:
    """A static tree of m nodes in breadth-first order; the root, the newest id, is no node."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        """Return m."""
        return len(self.paths)

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return all(rank == 0 for path in self.paths for rank in path)

    @property
    def depth(self) -> int:
        """Depth of the deepest node, the root's children being at 1."""
        return len(self.paths[-1])

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Index of each node's parent, -1 = the root."""
        index = {path: node for node, path in enumerate(self.paths)}
        return tuple(index.get(path[:-1], -1) for path in self.paths)

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Children of each node that has some, in order of rank; -1 = the root."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}

    def level(self, depth: int) -> tuple[int, ...]:
        """Return the nodes at a depth that have children; depth 0 is the root, as -1."""
        if depth == 0:
            return (-1,)
        return tuple(n for n, path in enumerate(self.paths) if len(path) == depth and n in self.children)
