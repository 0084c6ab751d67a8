"""What one request asks of speculation in `SamplingParams.extra_args["specdec"]`, read the same way in every host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from specdec_core.config.options import RequestOptions
from specdec_core.config.request_options import request_options, salted
from specdec_core.errors import RequestError

if TYPE_CHECKING:
    from specdec_core.config.speculative import ResolvedConfig
    from specdec_core.registry.loader import Registry

KEY: Final = "specdec"
OFF: Final = "off"
K: Final = "num_speculative_tokens"


@dataclass(frozen=True, slots=True)
class Speculation:
    """What one request asks.

    off      decode it plainly
    k        its own number of drafts a step, None for the configured one
    options  validated options of the method, of one made of parts a tuple with those of each; None for none
    """

    off: bool = False
    k: int | None = None
    options: RequestOptions | tuple[RequestOptions | None, ...] | None = None

    @property
    def max_draft(self) -> int | None:
        """The limit for `HostRequest.max_draft`: 0 for a request that is decoded plainly."""
        return 0 if self.off else self.k


def read(raw: Any, resolved: ResolvedConfig | None, registry: Registry, cache_salt: str | None = None) -> Speculation:
    """Read what a request gives under `extra_args["specdec"]`: a mapping, or the same as JSON text; None for nothing.

    `resolved` is None in an engine without speculation, which takes `off` and no other key. With a `cache_salt` a
    method that remembers requests shares only with those of the same salt. Raises RequestError that names the key, what
    was given, and what was expected.
    """
    asked = _read(raw, resolved, registry)
    if cache_salt is None or resolved is None or asked.off:
        return asked
    return replace(asked, options=salted(asked.options, resolved, registry, cache_salt))


def _read(raw: Any, resolved: ResolvedConfig | None, registry: Registry) -> Speculation:
    if raw is None:
        return Speculation(options=None if resolved is None else request_options(resolved, registry, None))
    given = _mapping(raw)
    off, k = given.get(OFF, False), given.get(K)
    if not isinstance(off, bool):
        raise RequestError(_wrong(f"[{OFF!r}]", off, "true or false"))
    rest = {name: value for name, value in given.items() if name not in (OFF, K)}
    if resolved is None:
        if not off or rest:
            message = f"extra_args[{KEY!r}] sets options of speculation, but this engine has no speculative_config"
            raise RequestError(message)
        return Speculation(off=True)
    most = resolved.num_speculative_tokens
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= most):
        raise RequestError(_wrong(f"[{K!r}]", k, f"a whole number in 1 .. {most}, the engine's own {K}"))
    return Speculation(off, k, request_options(resolved, registry, rest or None))


def _mapping(raw: Any) -> Mapping[str, Any]:
    given = raw
    if isinstance(raw, str):
        try:
            given = json.loads(raw)
        except ValueError:
            raise RequestError(_wrong("", raw, "a mapping of options, or one as JSON text")) from None
    if not isinstance(given, Mapping):
        raise RequestError(_wrong("", raw, "a mapping of options, or one as JSON text"))
    return given


def _wrong(key: str, given: Any, expected: str) -> str:
    return f"extra_args[{KEY!r}]{key}={given!r} is invalid; expected {expected}"
