"""What of a request's `extra_args` this engine reads: the key of speculation, and nothing else."""

from __future__ import annotations

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import RequestError
from specdec_core.host import asked
from specdec_core.registry.loader import Registry
from specdec_engine.sampling_params import SamplingParams


def speculation_of(
    params: SamplingParams, resolved: ResolvedConfig | None, registry: Registry, cache_salt: str | None = None
) -> asked.Speculation:
    """Read what a request asks. Raises RequestError for keys that nothing here reads and for invalid values."""
    extra = params.extra_args or {}
    unknown = sorted(set(extra) - {asked.KEY})
    if unknown:
        message = f"extra_args has the keys {unknown}, of which nothing here knows; only {asked.KEY!r} is read"
        raise RequestError(message)
    return asked.read(extra.get(asked.KEY), resolved, registry, cache_salt)
