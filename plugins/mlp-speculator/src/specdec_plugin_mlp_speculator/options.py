"""The keys of `mlp_speculator` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.config.speculative import MethodOptions

Width = Annotated[int, Field(ge=1, strict=True)]


class MlpSpeculatorOptions(MethodOptions):
    """How a speculator drafts: chains, or trees if one of the two keys is given."""

    n_candidates: int | None = Field(
        default=None,
        ge=1,
        strict=True,
        description="Draft trees that hold this many sequences, the likeliest of those that top_k_tokens_per_head "
        "makes. Left out: chains, or the checkpoint's number if top_k_tokens_per_head is given.",
    )
    top_k_tokens_per_head: tuple[Width, ...] | None = Field(
        default=None,
        min_length=1,
        description="How many ids follow each sequence at each head of a tree, which is as deep as this is long. Left "
        "out: chains, or the checkpoint's numbers if n_candidates is given.",
    )
