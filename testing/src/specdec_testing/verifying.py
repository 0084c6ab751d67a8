"""Calls of a verifier for a target whose distribution is a table, and what a verdict must look like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specdec_core.draft import Draft, Verdict
from specdec_core.noise import Noise, Purpose
from specdec_core.protocols import DrawsForItself, Verifier
from specdec_nn.ops.race.reference import race_reference
from specdec_testing.table import random_table

Ids = npt.NDArray[np.int64]
PARENTS = (-1, -1, 0, 0, 1, 2, 3)  # of the trees: two children below the newest id and below its first child, then one


@dataclass(frozen=True)
class Case:
    """One call of `Verifier.verify`, and the table [V, V] whose row of a node's id is the distribution after it.

    newest  [n] the newest id of each row
    last    [rows of logits] the id that each row of logits comes after
    """

    draft: Draft
    newest: Ids
    table: npt.NDArray[np.float64]
    last: Ids
    logits: torch.Tensor
    noise: Noise
    draws: torch.Tensor
    greedy: npt.NDArray[np.bool_]

    def verify(self, verifier: Verifier) -> Verdict:
        """Return the verdict; a verifier that draws for itself is given no draws."""
        own = isinstance(verifier, DrawsForItself) and verifier.draws_for_itself
        return verifier.verify(self.draft, self.logits, self.noise, None if own else self.draws, self.greedy)

    def given(self) -> list[Any]:
        """Return everything that a verifier could write into."""
        return [self.draft, self.logits, self.noise, self.draws, self.greedy]

    def alone(self, row: int) -> Case:
        """Return the same call for one row alone."""
        ends = np.cumsum([0, *(length + 1 for length in self.draft.lengths or ())])
        own = slice(int(ends[row]), int(ends[row + 1]))
        noise = Noise(self.noise.keys[own], self.noise.positions[own], self.noise.seq_index[own])
        one = slice(row, row + 1)
        parts = self.last[own], self.logits[own], noise, self.draws[own], self.greedy[one]
        return Case(self.draft.select([row]), self.newest[one], self.table, *parts)

    def greedy_path(self, row: int) -> int:
        """Return how many drafts of a row are the likeliest ids, one after the other."""
        start = sum((self.draft.lengths or ())[:row])
        tokens = self.draft.tokens[start : start + (self.draft.lengths or ())[row]].tolist()
        parents = list(range(-1, len(tokens) - 1))
        if self.draft.parents is not None:
            parents = self.draft.parents[start : start + len(tokens)].tolist()
        here, id_, count = -1, int(self.newest[row]), 0
        while True:
            best = int(self.table[id_].argmax())
            found = [i for i, parent in enumerate(parents) if parent == here and tokens[i] == best]
            if not found:
                return count
            here, id_, count = found[0], best, count + 1


def random_drafts(rows: int, vocab_size: int, *, trees: bool, drawn: bool, seed: int = 0) -> tuple[Draft, Ids]:
    """Return drafts, and the newest ids [rows]: chains of 0..4 ids, or trees of 7 nodes.

    Drawn drafts come from a table of their own, siblings without replacement; the others are its likeliest ids, and
    are as often the target's as chance has it.
    """
    rng = np.random.default_rng([seed, rows])
    table = random_table(vocab_size, seed=22, concentration=0.7).astype(np.float32)
    newest = np.arange(rows) % vocab_size
    parents = np.array(PARENTS if trees else range(-1, 3))
    tokens = np.empty((rows, len(parents)), np.int64)
    distributions = np.empty_like(tokens)
    for parent in dict.fromkeys(parents.tolist()):
        nodes = np.flatnonzero(parents == parent)
        before = newest if parent < 0 else tokens[:, parent]
        weights = table[before] / (rng.exponential(size=(rows, vocab_size)) if drawn else 1.0)
        tokens[:, nodes] = np.argsort(-weights, axis=1)[:, : len(nodes)]
        distributions[:, nodes] = before[:, None]
    lengths = np.full(rows, len(parents)) if trees else rng.integers(0, 1 + len(parents), rows)
    there = np.arange(len(parents)) < lengths[:, None]
    draft = Draft(lengths.tolist(), tokens[there].astype(np.int32))
    if trees:
        draft.parents = np.broadcast_to(parents, there.shape)[there].astype(np.int32)
    if drawn:
        draft.q, draft.q_row = torch.from_numpy(table), distributions[there].astype(np.int32)
    return draft, newest


def case_of(draft: Draft, newest: Ids, vocab_size: int, greedy: npt.NDArray[np.bool_], seed: int = 1) -> Case:
    """Return the call for drafts of a target with a random table; noise and the host's draws depend on the seed."""
    table = random_table(vocab_size, seed=21)
    table[:, 0] *= np.arange(vocab_size) % 2  # an id that cannot follow some others
    table /= table.sum(axis=1, keepdims=True)
    lengths = np.asarray(draft.lengths, np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths + 1)
    last, depth, at, node = np.empty(len(rows), np.int64), np.zeros(len(rows), np.int32), 0, 0
    for row, length in enumerate(lengths.tolist()):
        last[at] = newest[row]
        for i in range(length):
            parent = i - 1 if draft.parents is None else int(draft.parents[node + i])
            last[at + 1 + i], depth[at + 1 + i] = draft.tokens[node + i], depth[at + 1 + parent] + 1
        at, node = at + 1 + length, node + length
    keys = np.random.default_rng(seed).integers(0, 2**63, len(lengths)).astype(np.uint64)
    noise = Noise(keys[rows], 40 + depth, np.zeros(len(rows), np.int32))
    distribution = torch.from_numpy(table.astype(np.float32))[torch.from_numpy(last)]
    draws = torch.where(
        torch.from_numpy(greedy[rows]), distribution.argmax(-1), race_reference(distribution, noise, Purpose.TARGET)
    )
    return Case(draft, newest, table, last, distribution.log(), noise, draws, greedy)


def verdict_problems(verdict: Verdict, draft: Draft, vocab_size: int) -> list[str]:
    """Return what is out of contract in a verdict on a draft in host form; an empty list if nothing is."""
    lengths = list(draft.lengths or ())
    accepted = np.asarray(verdict.accepted)
    if accepted.shape != (len(lengths),):
        return [f"accepted has shape {list(accepted.shape)} for {len(lengths)} rows"]
    total = int(accepted.sum())
    sizes = {"path": total, "emitted": total + len(lengths), "logits_row": total + len(lengths)}
    wrong = [f"{n} has {len(getattr(verdict, n))} entries, expected {size}" for n, size in sizes.items()]
    wrong = [text for text, (n, size) in zip(wrong, sizes.items(), strict=True) if len(getattr(verdict, n)) != size]
    return wrong or list(_row_problems(verdict, draft, lengths, vocab_size))


def _row_problems(verdict: Verdict, draft: Draft, lengths: list[int], vocab_size: int) -> Iterator[str]:
    node = path_at = at = 0
    for row, (length, accepted) in enumerate(zip(lengths, verdict.accepted.tolist(), strict=True)):
        path = verdict.path[path_at : path_at + accepted].tolist()
        tokens = draft.tokens[node : node + length].tolist()
        parents = list(range(-1, length - 1))
        if draft.parents is not None:
            parents = draft.parents[node : node + length].tolist()
        emitted = verdict.emitted[at : at + accepted + 1].tolist()
        if any(not 0 <= i < length for i in path) or [parents[i] for i in path] != [-1, *path][: len(path)]:
            yield f"row {row}: {path} is no path of its {length} drafts with parents {parents}"
        elif emitted[:-1] != [tokens[i] for i in path] or not 0 <= emitted[-1] < vocab_size:
            yield f"row {row}: {emitted} are not the ids of its path {path} and one more of the vocabulary"
        elif verdict.logits_row[at : at + accepted + 1].tolist() != [node + row + 1 + i for i in (-1, *path)]:
            yield f"row {row}: logits_row {verdict.logits_row[at : at + accepted + 1].tolist()} for the path {path}"
        node, path_at, at = node + length, path_at + accepted, at + accepted + 1


def transitions(verdict: Verdict, newest: Ids, size: int, places: int) -> list[npt.NDArray[np.int64]]:
    """Return, for each of the first places of a block, how often each id followed each id before it, [size, size]."""
    counts = [np.zeros((size, size), np.int64) for _ in range(places)]
    at = 0
    for before, accepted in zip(newest.tolist(), verdict.accepted.tolist(), strict=True):
        for place, token in enumerate(verdict.emitted[at : at + accepted + 1].tolist()[:places]):
            counts[place][before, token] += 1
            before = token
        at += accepted + 1
    return counts
