"""The keys of `token_recycling` in a speculative configuration and in a request; knows no table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from specdec_core.config.speculative import MethodOptions, SharingRequestOptions

Shape = Literal["dynamic", "static", "chain"]
Path = tuple[int, ...]

CANDIDATES = 8
PAIRS = 65_536
TOKEN_PROB = 0.05
NAMESPACES = 64


class RecyclingOptions(MethodOptions):
    """What is kept of the target's answers, who shares it, and how drafts are made of it."""

    candidates: int = Field(CANDIDATES, ge=1, le=64, description="Next ids that are kept for each id, the likeliest.")
    pairs: int = Field(
        PAIRS, ge=0, description="Places for pairs of ids, whose next ids are kept as well and come first. 0 = none."
    )
    tree: Shape = Field(
        "dynamic",
        description="dynamic: the likeliest nodes, whatever tree they form. static: a tree of ranks that is given "
        "beforehand. chain: the likeliest candidate each time, for hosts that verify chains only.",
    )
    template: tuple[Path, ...] | None = Field(
        None,
        description="The static tree: paths of ranks, each after its own beginning, the most useful first. "
        "null = one for the number of drafts.",
    )
    min_token_prob: float = Field(
        TOKEN_PROB, ge=0, le=1, description="No node of a dynamic tree is estimated to be less likely than this."
    )
    shared: bool = Field(
        True, description="Whether requests of one namespace share what is kept. false = each request has its own."
    )
    max_namespaces: int = Field(
        NAMESPACES, ge=1, description="Namespaces that are kept while no request runs in them; the oldest leave first."
    )
    load_cache: str | None = Field(
        None, min_length=1, description="File of candidates to begin with. null = begin with none."
    )
    save_cache: str | None = Field(
        None, min_length=1, description="File that the candidates are written to at the end. null = none."
    )

    @field_validator("template")
    @classmethod
    def _paths(cls, template: tuple[Path, ...] | None) -> tuple[Path, ...] | None:
        """Refuse paths that are no tree."""
        seen: set[Path] = {()}
        for path in template or ():
            if not path or min(path) < 0 or path[:-1] not in seen or path in seen:
                message = f"the path {list(path)} is empty, negative, repeated, or comes before its own beginning"
                raise ValueError(message)
            seen.add(path)
        if template is not None and not template:
            message = "a template has at least one path"
            raise ValueError(message)
        return template


class RecyclingRequestOptions(SharingRequestOptions):
    """What one request may set."""
