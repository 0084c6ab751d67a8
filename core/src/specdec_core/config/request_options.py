"""What one request gives to its method, read by the model of the method's plugin."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from specdec_core.config.options import RequestOptions, SharingRequestOptions, keys_of, request_model, validate
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import RequestError
from specdec_core.registry.loaded import Plugins

SALT_BYTES: Final = 16


def request_options(
    resolved: ResolvedConfig, registry: Plugins, raw: Any
) -> RequestOptions | tuple[RequestOptions | None, ...] | None:
    """Validate what a request gives as `SamplingParams.extra_args["specdec"]`; None if it gives nothing.

    A method that is made of others gets a tuple with the options of each part: a key is every part's that reads it.
    Raises RequestError naming every key that is wrong, or that the method takes no such options.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        message = f'extra_args["specdec"] must be a mapping of options, got {type(raw).__name__}'
        raise RequestError(message)
    if resolved.parts:
        return _options_of_parts(resolved, registry, raw)
    model = request_model(registry, registry.plugin(resolved.record))
    if model is None:
        if not raw:
            return None
        message = f"method {resolved.method!r} takes no options from a request, got {', '.join(map(repr, raw))}"
        raise RequestError(message)
    options, problems = validate(model, raw)
    if options is None:
        listed = "; ".join(map(str, problems))
        message = f'extra_args["specdec"] does not fit method {resolved.method!r}: {listed}'
        raise RequestError(message)
    return options


def salted(
    options: RequestOptions | tuple[RequestOptions | None, ...] | None,
    resolved: ResolvedConfig,
    registry: Plugins,
    salt: str,
) -> RequestOptions | tuple[RequestOptions | None, ...] | None:
    """Return options with which a method that remembers requests shares only with those of the same `salt`.

    The namespace of such a request is the one that it gave, and a digest of the salt. Raises RequestError for a method
    that remembers and has no namespaces (`SharingRequestOptions`).
    """
    if resolved.parts:
        own = options if isinstance(options, tuple) else (None,) * len(resolved.parts)
        parts = [salted(each, part, registry, salt) for each, part in zip(own, resolved.parts, strict=True)]
        return tuple(each for each in parts if not isinstance(each, tuple))
    if not resolved.traits.remembers:
        return options
    model = request_model(registry, registry.plugin(resolved.record))
    if model is None or not issubclass(model, SharingRequestOptions):
        message = (
            f"a prompt has a cache_salt, but method {resolved.method!r} remembers the texts of all requests and has no "
            "namespaces to keep them apart; leave cache_salt out, or decode the request without speculation: "
            'extra_args={"specdec": {"off": True}}'
        )
        raise RequestError(message)
    given = options if isinstance(options, SharingRequestOptions) else model()
    name = f"{given.namespace}#{blake2b(salt.encode(), digest_size=SALT_BYTES).hexdigest()}"
    return given.model_copy(update={"namespace": name})


def _options_of_parts(
    resolved: ResolvedConfig, registry: Plugins, raw: Mapping[str, Any]
) -> tuple[RequestOptions | None, ...]:
    """Hand each part the keys that it reads. Raises RequestError for a key that no part reads."""
    models = [request_model(registry, registry.plugin(part.record)) for part in resolved.parts]
    read = [() if model is None else keys_of(model) for model in models]
    unknown = [key for key in raw if not any(key in keys for keys in read)]
    if unknown:
        valid = sorted({key for keys in read for key in keys})
        message = f"no part of method {resolved.method!r} reads {', '.join(map(repr, unknown))} from a request"
        raise RequestError(f"{message}; there are: {', '.join(valid) or 'none'}")
    found = []
    for part, keys in zip(resolved.parts, read, strict=True):
        own = {key: value for key, value in raw.items() if key in keys}
        options = request_options(part, registry, own) if own else None
        assert not isinstance(options, tuple)  # a part has no parts: see specdec_core.config.parts
        found.append(options)
    return tuple(found)
