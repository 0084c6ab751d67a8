"""Maps between the ids of a drafter and those of its target, and tables that both may have; it reads no files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specdec_core.config.padding import table_problem
from specdec_core.errors import ConfigError

SLICE = 4096  # rows of two tables that are compared at a time


def read_map(d2t: Tensor | None, t2d: Tensor | None, vocab_size: int) -> Tensor | None:
    """Return the offsets of draft ids, [V_d] int64, None where they are the target's ids.

    d2t [V_d] as stored or None, t2d [V] marks of the ids that a draft may have, or None; `vocab_size` is the target's.
    Raises ConfigError for a map out of the vocabulary or of another one, one that names an id twice, and two maps that
    differ.
    """
    problem = None if t2d is None else table_problem("the map t2d", len(t2d), vocab_size)
    if problem is not None:
        raise ConfigError(f"{problem}; give a head that was trained for this target")
    if d2t is None or (len(d2t) >= vocab_size and not bool(d2t.any())):
        return None
    offsets = d2t.to(torch.int64)
    ids = torch.arange(len(offsets)) + offsets
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        message = f"the map d2t names ids {int(ids.min())} .. {int(ids.max())}, and the target has {vocab_size}"
        raise ConfigError(message)
    distinct = len(set(ids.tolist()))
    if distinct != len(ids):
        message = f"the map d2t names {len(ids) - distinct} ids of the target more than once"
        raise ConfigError(message)
    if t2d is not None and not torch.equal(torch.nonzero(t2d.bool())[:, 0], ids.sort().values):
        message = "the maps d2t and t2d of the checkpoint name different ids of the target"
        raise ConfigError(message)
    return offsets


def pick_embedding(own: Tensor | None, shared: Tensor, share: bool | None, logger: logging.Logger) -> Tensor:
    """Return the embedding that a drafter uses: its own [n, H_d] or the target's [V, H].

    `share` is what the user says: true the target's, false its own, None its own if there is one that differs, with a
    warning that gives the largest difference. Raises ConfigError where the wish cannot be met.
    """
    if own is None:
        if share is False:
            message = "share_embeddings is false, and the checkpoint brings no embed_tokens.weight; leave it out"
            raise ConfigError(message)
        return shared
    if share and own.shape[1] != shared.shape[1]:
        message = f"share_embeddings is true, and the widths differ: {own.shape[1]} and {shared.shape[1]}"
        raise ConfigError(message)
    if share:
        return shared
    if own.shape != shared.shape:
        return own
    difference = largest_difference(own, shared)
    if difference == 0.0:
        return shared
    if share is None:
        logger.warning(
            "the checkpoint's embed_tokens.weight differs from the target's embedding by up to %.3g and is used; "
            "set share_embeddings to true if it is a leftover of training",
            difference,
        )
    return own


def warn_of_other_vocabulary(config: Mapping[str, Any], vocab_size: int, model: str, logger: logging.Logger) -> None:
    """Warn where config.json of a head names another vocabulary than the target's, beyond padding.

    Of a head that brings no table of its own nothing else shows that it was made for another tokenizer.
    """
    said = config.get("vocab_size")
    if type(said) is int and (problem := table_problem("vocab_size in its config.json", said, vocab_size)) is not None:
        logger.warning("%r: %s; drafts of a head for another tokenizer are never accepted", model, problem)


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tables, a slice at a time; infinity for other shapes."""
    if a.shape != b.shape:
        return float("inf")
    parts = (slice(i, i + SLICE) for i in range(0, len(a), SLICE))
    return max(float((a[part].to(b.device).float() - b[part].float()).abs().max()) for part in parts)
