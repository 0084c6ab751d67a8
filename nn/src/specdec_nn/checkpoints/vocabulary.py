"""Tables that a drafter and its target may both have; it reads no files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from specdec_core.config.padding import table_problem
from specdec_core.errors import ConfigError
from specdec_nn.checkpoints.decoder import sharing_problem

SLICE = 4096  # rows of two tables that are compared at a time


def pick_embedding(own: Tensor | None, shared: Tensor, share: bool | None, logger: logging.Logger) -> Tensor:
    """Return the embedding that a drafter uses: its own [n, H_d] or the target's [V, H].

    `share` is what the user says: true the target's, false its own, None its own if there is one that differs, with a
    warning that gives the largest difference. Raises ConfigError where the wish cannot be met.
    """
    problem = sharing_problem(None if own is None else tuple(own.shape), shared.shape[1], share)
    if problem is not None:
        raise ConfigError(problem)
    if own is None or share:
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
