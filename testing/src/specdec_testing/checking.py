"""Whether a draft is in contract, every violation in words; the same rules that a host enforces, and no host needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specdec_core.draft import BatchView, Draft
from specdec_core.draft_rules import are_distributions
from specdec_core.errors import ContractError
from specdec_core.traits import MethodTraits


def host_rows(draft: Draft) -> list[list[int]]:
    """Return the ids of each row, from the host form or from a device drafter's fixed-width form.

    In the fixed-width form -1 is allowed only at the end of a row; ValueError if it does not.
    """
    if draft.lengths is not None:
        flat = _list(draft.tokens)
        ends = np.cumsum([0, *draft.lengths])
        return [flat[start:end] for start, end in itertools.pairwise(ends)]
    rows = []
    for row in _list(draft.tokens):
        length = next((j for j, token in enumerate(row) if token == -1), len(row))
        if any(token != -1 for token in row[length:]):
            message = f"padding -1 comes before a draft in {row}"
            raise ValueError(message)
        rows.append(row[:length])
    return rows


def draft_problems(draft: Any, batch: BatchView, traits: MethodTraits, vocab_size: int) -> list[str]:
    """Return what is out of contract in a draft of a batch; an empty list if nothing is."""
    if not isinstance(draft, Draft):
        return [f"propose returned {type(draft).__name__}, expected Draft"]
    shape = _shape_problem(draft, len(batch))
    if shape is not None:
        return [shape]
    try:
        rows = host_rows(draft)
    except ValueError as error:
        return [str(error)]
    problems = list(_row_problems(rows, batch, traits, vocab_size))
    if draft.parents is not None:
        problems += _parent_problems(draft, rows, traits)
    if draft.q is not None or draft.q_row is not None:
        problems += _distribution_problems(draft, rows, traits, vocab_size)
    if draft.confidence is not None and (
        len(draft.confidence) != len(draft.tokens) or not np.isfinite(np.asarray(draft.confidence)).all()
    ):
        problems.append("confidence is not one finite number a draft")
    if not problems:
        try:
            draft.to_host().check(batch.max_draft, vocab_size, traits)
        except ContractError as error:
            problems.append(str(error))
    return problems


def assert_same_drafts(
    got: Mapping[str, Sequence[list[int]]], expected: Mapping[str, Sequence[list[int]]], here: str, there: str
) -> None:
    """Raise AssertionError with the first call whose drafts differ; both have a list a call, by request.

    `here` and `there` tell in words where each comes from, and may end with what to do.
    """
    for name, calls in expected.items():
        for call, (one, other) in enumerate(itertools.zip_longest(got.get(name, ()), calls)):
            if one != other:
                message = f"call {call} for {name!r} drafted {one} {here}, and {other} {there}"
                raise AssertionError(message)


def _list(values: Any) -> list[Any]:
    """Return an array or tensor as nested lists."""
    result: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return result


def _shape_problem(draft: Draft, n: int) -> str | None:
    """Check row count, lengths and the type of the ids, without which nothing else can be read."""
    tokens = draft.tokens
    integer = (
        not (tokens.dtype.is_floating_point or tokens.dtype == torch.bool)
        if isinstance(tokens, torch.Tensor)
        else isinstance(tokens, np.ndarray) and np.issubdtype(tokens.dtype, np.integer)
    )
    if not integer:
        return f"tokens are {getattr(tokens, 'dtype', type(tokens).__name__)}, expected an integer array or tensor"
    if draft.lengths is None:
        ok = tokens.ndim == 2 and tokens.shape[0] == n
        return None if ok else f"tokens are {list(tokens.shape)}, expected [{n}, width] where lengths is None"
    lengths: Sequence[Any] = draft.lengths
    if len(lengths) != n:
        return f"{len(lengths)} rows for a batch of {n}"
    if any(not isinstance(length, (int, np.integer)) or length < 0 for length in lengths):
        return f"lengths {list(lengths)} are not whole numbers of at least 0"
    if tokens.ndim != 1 or sum(lengths) != len(tokens):
        return f"lengths sum to {sum(lengths)} and tokens are {list(tokens.shape)}"
    return None


def _row_problems(rows: list[list[int]], batch: BatchView, traits: MethodTraits, vocab_size: int) -> Iterator[str]:
    """Yield rows that are too long, and ids outside the vocabulary."""
    for i, row in enumerate(rows):
        limit = int(batch.max_draft[i])
        if len(row) > limit:
            yield f"row {i}: {len(row)} drafts, and batch.max_draft[{i}] is {limit}"
        if traits.max_tokens is not None and len(row) > traits.max_tokens:
            yield f"row {i}: {len(row)} drafts, more than the {traits.max_tokens} of its traits"
        last = len(batch.request(i).tokens) + len(row)
        if row and traits.shape == "chain" and traits.max_position is not None and last > traits.max_position:
            yield f"row {i}: a draft at position {last - 1}, and traits end at {traits.max_position}"
        outside = [token for token in row if not 0 <= token < vocab_size]
        if outside:
            yield f"row {i}: ids {outside} are outside 0 .. {vocab_size - 1}"


def _parent_problems(draft: Draft, rows: list[list[int]], traits: MethodTraits) -> list[str]:
    """Check that parents come before their children and that siblings differ."""
    if traits.shape != "tree":
        return ["parents are set although the traits declare chain"]
    parents = _list(draft.parents)
    if len(parents) != sum(len(row) for row in rows):
        return [f"{len(parents)} parents for {sum(len(row) for row in rows)} drafts"]
    problems, start = [], 0
    for i, row in enumerate(rows):
        own = parents[start : start + len(row)]
        start += len(row)
        if any(not -1 <= parent < node for node, parent in enumerate(own)):
            problems.append(f"row {i}: parents {own} do not all come before their children")
        if traits.draft_distribution == "deterministic" and len(set(zip(own, row, strict=True))) != len(row):
            problems.append(f"row {i}: siblings with the same id")
    return problems


def _distribution_problems(draft: Draft, rows: list[list[int]], traits: MethodTraits, vocab_size: int) -> list[str]:
    """Check that q holds distributions, and that each soft draft has a positive probability in the row it names."""
    if traits.draft_distribution != "soft":
        return ["q is set although the traits declare deterministic"]
    if draft.q is None or draft.q_row is None:
        return ["q and q_row must be set together"]
    flat = [token for row in rows for token in row]
    q, q_row = draft.q, _list(draft.q_row)
    width = vocab_size if draft.d2t is None else len(draft.d2t)
    if q.ndim != 2 or q.shape[1] != width or q.dtype != torch.float32:
        return [f"q is {list(q.shape)} {q.dtype}, expected [m, {width}] float32"]
    if len(q_row) != len(flat) or any(not -1 <= row < len(q) for row in q_row):
        return [f"q_row {q_row} does not name one of {len(q)} rows, or -1, for each of {len(flat)} drafts"]
    if not are_distributions(q.cpu()):
        return ["rows of q are not non-negative with sum 1"]
    columns = {token: token for token in range(vocab_size)}
    if draft.d2t is not None:
        columns = {i + int(offset): i for i, offset in enumerate(draft.d2t.tolist())}
    for token, row in zip(flat, q_row, strict=True):
        if row >= 0 and (token not in columns or float(q[row, columns[token]]) <= 0):
            return [f"draft {token} has probability 0 in row {row} of q, from which it should have been drawn"]
    return []
