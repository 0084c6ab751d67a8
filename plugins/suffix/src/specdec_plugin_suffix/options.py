"""The keys of `suffix` in a speculative configuration and in a request; knows no cache."""

from __future__ import annotations

from pydantic import Field

from specdec_core.config.speculative import MethodOptions, SharingRequestOptions

DEPTH = 24
CACHED_REQUESTS = 10_000
SPEC_FACTOR = 1.0
TOKEN_PROB = 0.1


class SuffixOptions(MethodOptions):
    """How drafts are made (vLLM 0.32's keys), what is shared between requests and for how long (ours)."""

    suffix_decoding_max_tree_depth: int = Field(
        DEPTH, ge=1, description="The most ids of a match and its draft together; also the default of k."
    )
    suffix_decoding_max_cached_requests: int = Field(
        CACHED_REQUESTS, ge=0, description="Responses that requests share, the oldest leave first; 0 = none."
    )
    suffix_decoding_max_spec_factor: float = Field(
        SPEC_FACTOR, ge=0, allow_inf_nan=False, description="A match of m ids is continued by at most m times this."
    )
    suffix_decoding_min_token_prob: float = Field(
        TOKEN_PROB, ge=0, le=1, description="No draft is estimated to be less likely than this."
    )
    max_cached_tokens: int | None = Field(
        None, ge=1, description="Ids of all shared responses; beyond it the oldest leave. null = no limit."
    )
    max_cached_bytes: int | None = Field(
        None, ge=1, description="Bytes in use for shared responses; beyond it the oldest leave. null = no limit."
    )
    time_to_live: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Seconds that a response stays after its request. null = no limit."
    )
    tree_drafts: bool = Field(False, description="Draft trees, the likeliest continuations first, instead of one path.")
    match_whole_context: bool = Field(
        False, description="Whether a match may be the whole text so far, which vLLM never looks up."
    )
    load_cache: str | None = Field(
        None, min_length=1, description="File of shared responses to begin with. null = begin with none."
    )
    save_cache: str | None = Field(
        None, min_length=1, description="File that the shared responses are written to at the end. null = none."
    )


class SuffixRequestOptions(SharingRequestOptions):
    """What one request may set."""

    max_spec_factor: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="As suffix_decoding_max_spec_factor, for this request."
    )
    min_token_prob: float | None = Field(
        None, ge=0, le=1, description="As suffix_decoding_min_token_prob, for this request."
    )
