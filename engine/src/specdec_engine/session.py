"""Building a session: configuration, plugins, target, proposer, verifier; checked in that order, undone together."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from specdec_core.config.detect import load_target_as
from specdec_core.config.resolve import resolve, swap_target
from specdec_core.config.speculative import ResolvedConfig, SpeculativeConfig
from specdec_core.errors import ConfigError, TargetError
from specdec_core.host.factory import make_controller, make_proposer, make_verifier
from specdec_core.protocols import Controller, Proposer, Verifier
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels
from specdec_core.registry.loader import Registry
from specdec_core.registry.tried import warn_if_newer
from specdec_core.sources import DraftSource, TargetInfo
from specdec_engine.contained import ContainedController, ContainedVerifier
from specdec_engine.kv_plan import draft_bytes, plan, replan
from specdec_engine.target import Target
from specdec_nn.fused.trial import fuse
from specdec_nn.hf.families import check_config
from specdec_nn.hf.loading import ModelSource, is_known_type, load_config, load_model, resolve_dtype
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import probe
from specdec_nn.hf.tokenizers import load_named_tokenizer, load_tokenizer
from specdec_nn.turns import lock_of

CPU_CHUNK = 512
FIXED_WIDTH_CHUNK = 64
UNLIMITED_CONTEXT = 4096
Init = TypeVar("Init", bound=Callable[..., None])

logger = logging.getLogger("specdec_engine")


@dataclass(slots=True)
class Session:
    """The parts of one engine; `source` is None if only a loaded model was given."""

    source: ModelSource | None
    registry: Registry
    target: Target
    resolved: ResolvedConfig | None
    proposer: Proposer | None
    verifier: Verifier | None
    controller: Controller | None


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


def undone_on_error(build: Init) -> Init:
    """Return an `__init__` that gives the model back and closes the drafter if it fails after they were made."""

    @functools.wraps(build)
    def undone(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            build(self, *args, **kwargs)
        except BaseException:
            target, runner = vars(self).get("_target"), vars(self).get("_runner")
            if runner is not None:
                runner.close()
            if target is not None:
                target.close()
            raise

    return cast("Init", undone)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tokenizer that a caller wants: loaded, by name, or (None) the one beside the weights; `skip`: none at all."""

    given: Any = None
    mode: str = "auto"
    revision: str | None = None
    skip: bool = False
    runs_code: bool = False

    def load(self, source: ModelSource | None) -> Any | None:
        """Return the tokenizer, None if there is none. Raises TargetError for one that cannot be read."""
        if self.skip:
            return None
        if isinstance(self.given, (str, PathLike)):
            return load_named_tokenizer(fspath(self.given), self.revision, self.mode, runs_code=self.runs_code)
        if self.given is not None or source is None:
            return self.given
        if self.revision is not None:
            source = replace(ModelSource.of(source.name, self.revision, self.runs_code), patch=source.patch)
        return load_tokenizer(source, self.mode)


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
    if wanted is not None and wanted > own:
        message = f"max_model_len={wanted} is above the model's own limit of {own} positions"
        raise TargetError(message)
    check_config(config, wanted or own)
    return replace(unlimited, max_model_len=wanted or own)


def open_session(
    model: str | None,
    speculative_config: Any,
    limits: Limits,
    *,
    dtype: str | torch.dtype,
    device: torch.device,
    plugins: Any,
    strict: bool,
    hf_model: nn.Module | None,
    revision: str | None,
    tokenizer: Wanted,
    trust_remote_code: bool = False,
    fused: bool = True,
) -> Session:
    """Build everything; on any error nothing is left behind."""
    warn_if_newer("torch", "transformers")
    if plugins is not None and not isinstance(plugins, Mapping):
        message = f"plugins={plugins!r}: expected a mapping from names to modules, objects or paths"
        raise ConfigError(message)
    if trust_remote_code not in (True, False):
        message = f"trust_remote_code={trust_remote_code!r}: expected True or False"
        raise TargetError(message)
    if fused not in (True, False):
        message = f"fused={fused!r}: expected True or False"
        raise TargetError(message)
    dtype = resolve_dtype(dtype)
    registry = Registry(Catalog.discover().with_local(plugins), strict=strict)
    try:
        source, hf_config = read_config(model, revision, hf_model, trust_remote_code)
    except TargetError:
        source = _loaded_as(model, revision, speculative_config, registry, trust_remote_code)
        swapped = _swapped(model, speculative_config, registry) if source is None else None
        if source is not None:
            hf_config = load_config(source)
        elif swapped is not None:
            model, speculative_config = swapped
            source, hf_config = read_config(model, None, hf_model, trust_remote_code)
        else:
            raise
    info = replace(target_info(model, hf_config, limits), revision=None if source is None else source.revision)
    resolved = None if speculative_config is None else resolve(speculative_config, info, registry)
    loaded_tokenizer = tokenizer.load(source)  # before the weights: what is wrong with it is said at once
    if hf_model is None:
        assert source is not None  # read_config has raised
        hf_model = load_model(source, dtype, device)
    with lock_of(hf_model), contextlib.ExitStack() as undo:
        target = _target(hf_model, info, limits, registry.kernels, loaded_tokenizer)
        undo.callback(target.close)
        bytes_per_token = probe(target.flat)
        if fused:
            fuse(target.flat)
        target.set_budget(_planned(limits, target, resolved, bytes_per_token, registry.kernels))
        proposer = verifier = controller = None
        if resolved is not None:
            target.tap(hidden=resolved.traits.hidden, aux_layers=resolved.traits.aux_layers)
            verifier = ContainedVerifier(make_verifier(resolved, registry), resolved.verifier)
            made = make_controller(resolved, registry)
            controller = made and ContainedController(made, resolved.controller or "", strict=strict)
            proposer = make_proposer(resolved, target, registry)
            if resolved.draft is not None and limits.kv_cache_tokens is None:
                target.set_budget(replan(target.kv_cache_tokens, bytes_per_token, target.device))
        undo.pop_all()
    return Session(source, registry, target, resolved, proposer, verifier, controller)


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
        "transformers does not know model_type %r of %r; it is loaded as %r, as %s says",
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


def _target(model: nn.Module, info: TargetInfo, limits: Limits, kernels: Kernels, tokenizer: Any | None) -> Target:
    default_chunk = FIXED_WIDTH_CHUNK if limits.decode_width is not None else CPU_CHUNK
    return Target(
        FlatModel(model, info.num_layers, info.vocab_size, kernels),
        info,
        ancestor_bits=kernels.get("ancestor_bits", "cpu"),  # of the tables of a step, which are host arrays
        max_num_seqs=limits.max_num_seqs,
        decode_width=limits.decode_width,
        prefill_chunk_size=limits.prefill_chunk_size or default_chunk,
        tokenizer=tokenizer,
    )


def _planned(
    limits: Limits, target: Target, resolved: ResolvedConfig | None, bytes_per_token: int, kernels: Kernels
) -> int:
    """Return the positions of the KV arena."""
    copied = target.device.type == "cpu" and kernels.backend("linear", target.device) != "reference"
    coming = draft_bytes(resolved, target.info, copied=copied)
    most = limits.max_num_seqs * target.info.max_model_len
    wanted = limits.kv_cache_tokens
    if wanted is None and limits.kv_cache_memory_bytes is not None:
        wanted = max(1, min(most, limits.kv_cache_memory_bytes // max(bytes_per_token, 1)))
    return plan(wanted, most, bytes_per_token, target.device, coming, limits.gpu_memory_utilization)
