"""What the target is and where it lies: its configuration, context limit and tokenizer; loads no weights."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import nn

from specdec_core.config.detect import load_target_as
from specdec_core.config.resolve import swap_target
from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import ConfigError, TargetError
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource, TargetInfo
from specdec_nn.hf.families import check_config, longest_text
from specdec_nn.hf.loading import ModelSource, is_known_type, load_config
from specdec_nn.hf.tokenizers import load_named_tokenizer, load_tokenizer

UNLIMITED_CONTEXT = 4096

logger = logging.getLogger("specdec_engine")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Numbers the caller may set; None where the engine chooses."""

    max_model_len: int | None
    max_num_seqs: int
    kv_cache_tokens: int | None
    decode_width: int | None
    prefill_chunk_size: int | None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None  # checked where it is read

    def __post_init__(self) -> None:
        """Refuse numbers that are not whole or not positive."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name != "gpu_memory_utilization" and value is not None and not (type(value) is int and value >= 1):
                message = f"{name}={value!r} is not a whole number of at least 1"
                raise TargetError(message)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tokenizer that a caller wants: loaded, by name, or (None) the one beside the weights; `skip`: none at all."""

    given: Any = None
    mode: str = "auto"
    revision: str | None = None
    skip: bool = False
    runs_code: bool = False

    def noted(self) -> dict[str, Any]:
        """Return what `TargetInfo.extra` says of a tokenizer that is not the one beside the weights."""
        if self.skip or self.revision is not None:
            return {"tokenizer": self.revision}
        return {} if self.given is None else {"tokenizer": str(self.given) if self._is_named else "an object"}

    @property
    def _is_named(self) -> bool:
        return isinstance(self.given, (str, PathLike))

    def load(self, source: ModelSource | None) -> Any | None:
        """Return the tokenizer, None if there is none. Raises TargetError for one that cannot be read."""
        if self.skip:
            return None
        if self._is_named:
            return load_named_tokenizer(fspath(self.given), self.revision, self.mode, runs_code=self.runs_code)
        if self.given is not None or source is None:
            return self.given
        if self.revision is not None:
            source = replace(ModelSource.of(source.name, self.revision, self.runs_code), patch=source.patch)
        return load_tokenizer(source, self.mode)


@dataclass(frozen=True, slots=True)
class Found:
    """A target before its weights are loaded.

    source              where it is; None if only a loaded model was given
    hf_config           its transformers configuration
    model               its name, which is another than the one given where that was a draft checkpoint
    speculative_config  as given, or as the draft checkpoint means it
    """

    source: ModelSource | None
    hf_config: Any
    model: str | None
    speculative_config: Any


def find_target(
    given: Found, revision: str | None, hf_model: nn.Module | None, registry: Registry, runs_code: bool
) -> Found:
    """Return where the target is, with its configuration; `given` has a name and a speculative configuration only.

    Raises TargetError.
    """
    model, config = given.model, given.speculative_config
    try:
        return Found(*read_config(model, revision, hf_model, runs_code), model, config)
    except TargetError:
        source = _loaded_as(model, revision, config, registry, runs_code)
        if source is not None:
            return Found(source, load_config(source), model, config)
        swapped = _swapped(model, config, registry)
        if swapped is None:
            raise
        model, config = swapped
        return Found(*read_config(model, None, hf_model, runs_code), model, config)


def read_config(
    model: str | None, revision: str | None, hf_model: nn.Module | None, runs_code: bool = False
) -> tuple[ModelSource | None, Any]:
    """Return where the model is and its transformers configuration, without loading weights.

    `runs_code` allows the code that comes with the model, with every reading of it. Raises TargetError.
    """
    source = None if model is None else ModelSource.of(model, revision, runs_code)
    if source is None and revision is not None:
        message = f"revision={revision!r} is of a hub id, and no model was named; leave it out"
        raise TargetError(message)
    if hf_model is not None:
        return source, hf_model.config
    if source is None:
        message = "no model was given: pass a folder, a .gguf file, a hub id, or a loaded model as hf_model="
        raise TargetError(message)
    return source, load_config(source)


def target_info(model: str | None, config: Any, limits: Limits) -> TargetInfo:
    """Describe the target; the context limit is the model's, or a smaller one that the caller set."""
    data, wanted = config.to_dict(), limits.max_model_len
    # Families without a table of positions name no limit; then the caller's holds, or a usual one.
    unlimited = TargetInfo.from_config(model, data, 2**31 - 1)
    try:
        own = TargetInfo.from_config(model, data).max_model_len
    except TargetError:
        own = wanted or UNLIMITED_CONTEXT
        if wanted is None:
            logger.warning("the configuration names no longest context; max_model_len is %d", own)
    most = longest_text(config, own)
    if wanted is not None and wanted > most:
        message = f"max_model_len={wanted} is above the model's own limit of {most} positions"
        raise TargetError(message)
    check_config(config, wanted or own, by_row=True, states=True)
    return replace(unlimited, max_model_len=wanted or own)


def _loaded_as(
    model: str | None, revision: str | None, speculative_config: Any, registry: Registry, runs_code: bool
) -> ModelSource | None:
    """Return a target of a type that transformers does not know, with the keys by which the method has it loaded."""
    if model is None:
        return None
    config, problems = (None, []) if speculative_config is None else SpeculativeConfig.read(speculative_config)
    draft = DraftSource(model, revision=revision)
    try:
        if problems or is_known_type(draft.hf_config.get("model_type")):
            return None
        found = load_target_as(draft, config, registry)
    except ConfigError:  # what is wrong with the target has been said better
        return None
    if found is None:
        return None
    method, keys = found
    logger.warning(
        "transformers does not know model_type %r of %r; it is loaded as %r, as %s asks",
        draft.hf_config.get("model_type"),
        model,
        keys.get("model_type"),
        method,
    )
    return replace(ModelSource.of(model, revision, runs_code), patch=keys)


def _swapped(model: str | None, speculative_config: Any, registry: Registry) -> tuple[str, Any] | None:
    """Return the target and the configuration that a draft checkpoint given as the model stands for, None if none."""
    swap = None
    if model is not None and Path(model).is_dir():
        with contextlib.suppress(ConfigError):
            swap = swap_target(DraftSource(model), registry)
    if swap is None:
        return None
    logger.warning("model %r stands for target %r with a drafter: %s", model, swap.model, swap.reason)
    given = {} if speculative_config is None else SpeculativeConfig.parse(speculative_config).as_json()
    return swap.model, {**given, **swap.speculative_config}
