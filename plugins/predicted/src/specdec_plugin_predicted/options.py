"""What one request may set for `predicted`; knows no tokenizer."""

from __future__ import annotations

from pydantic import Field, StrictInt

from specdec_core.config.speculative import RequestOptions


class PredictedRequestOptions(RequestOptions):
    """The expected output of one request."""

    prediction: str | tuple[StrictInt, ...] | None = Field(
        None,
        description="The output that is expected: its text, or its token ids. null = none, and the request is decoded "
        "without drafts.",
    )
