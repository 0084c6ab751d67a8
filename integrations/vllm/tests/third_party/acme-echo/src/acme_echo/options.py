"""The keys of `acme_echo`."""

from pydantic import Field

from specdec_core.config.speculative import MethodOptions, RequestOptions


class EchoOptions(MethodOptions):
    """In a speculative configuration."""

    reach: int = Field(1000, ge=2, description="How many of the last ids are searched.")


class EchoRequestOptions(RequestOptions):
    """In a request."""

    reach: int | None = Field(None, ge=2, description="As in the configuration, for this request.")
