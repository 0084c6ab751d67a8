"""What a request asks of speculation in `extra_args["specdec"]`: for every method the same, and for its method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.config.speculative import ResolvedConfig, request_options
from specdec_core.errors import RequestError
from specdec_core.registry.loader import Registry
from specdec_engine.sampling_params import SamplingParams

KEY: Final = "specdec"
OFF: Final = "off"
K: Final = "num_speculative_tokens"


@dataclass(frozen=True, slots=True)
class Speculation:
    """What one request asks.

    off        decode it plainly
    max_draft  its own k, None for the configured one
    options    validated options of the method, None if it takes none
    """

    off: bool = False
    max_draft: int | None = None
    options: Any = None


def speculation_of(params: SamplingParams, resolved: ResolvedConfig | None, registry: Registry) -> Speculation:
    """Read what a request asks. Raises RequestError for what nothing here reads and for values that cannot hold."""
    extra = params.extra_args or {}
    unknown = sorted(set(extra) - {KEY})
    if unknown:
        message = f"extra_args has the keys {unknown}, of which nothing here knows; only {KEY!r} is read"
        raise RequestError(message)
    raw = extra.get(KEY)
    if raw is None:
        return Speculation(options=None if resolved is None else request_options(resolved, registry, None))
    if not isinstance(raw, Mapping):
        message = f"extra_args[{KEY!r}] must be a mapping of options, got {type(raw).__name__}"
        raise RequestError(message)
    off, k = raw.get(OFF, False), raw.get(K)
    if not isinstance(off, bool):
        message = f"extra_args[{KEY!r}][{OFF!r}]={off!r} is neither true nor false"
        raise RequestError(message)
    rest = {name: value for name, value in raw.items() if name not in (OFF, K)}
    if resolved is None:
        if not off or rest:
            message = f"extra_args[{KEY!r}] sets options of speculation, but this engine has no speculative_config"
            raise RequestError(message)
        return Speculation(off=True)
    most = resolved.num_speculative_tokens
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= most):
        message = f"extra_args[{KEY!r}][{K!r}]={k!r} is no whole number in 1 .. {most}, the engine's own {K}"
        raise RequestError(message)
    return Speculation(off, k, request_options(resolved, registry, rest or None))
