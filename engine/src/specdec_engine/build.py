"""Building an engine: plugins, target, configuration, drafter, the parts of a step; in that order, undone together."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from specdec_core.config.recurrent import trees_problem
from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, TargetError
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.controlling import ContainedController
from specdec_core.host.cost_cut import cost_cut
from specdec_core.host.factory import make_controller, make_proposer, make_verifier
from specdec_core.host.reports import Reports
from specdec_core.host.runner import ProposerRunner
from specdec_core.metrics import SpecMetrics
from specdec_core.protocols import Proposer
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import TRITON, Kernels
from specdec_core.registry.loader import Registry
from specdec_core.registry.tried import warn_if_newer
from specdec_core.sources import TargetInfo
from specdec_engine.decoding.contained import ContainedVerifier
from specdec_engine.decoding.scheduler import Scheduler
from specdec_engine.decoding.speculation import Speculation
from specdec_engine.decoding.step import Stepper
from specdec_engine.decoding.target import Target
from specdec_engine.engine import Engine
from specdec_engine.loading import Found, Limits, Wanted, find_target, target_info
from specdec_engine.memory.kv_plan import States, draft_bytes, kept_row_bytes, plan, replan
from specdec_engine.memory.prefix_cache import PrefixCache
from specdec_engine.reporting.stats import EngineStats
from specdec_engine.requests.request import Request
from specdec_engine.requests.stopping import StopRules
from specdec_engine.requests.submission import Submission
from specdec_engine.sampling.logprobs import LogprobReader
from specdec_engine.sampling.noise_keys import NoiseKeys
from specdec_engine.sampling.sampler import Sampler
from specdec_nn.fused.trial import fuse
from specdec_nn.graphs import Replayed, cuda_capture
from specdec_nn.hf.adapters import Adapter
from specdec_nn.hf.families import check_config
from specdec_nn.hf.loading import eos_ids, load_model, resolve_dtype
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import probe
from specdec_nn.turns import lock_of

CPU_CHUNK = 512
FIXED_WIDTH_CHUNK = 64

logger = logging.getLogger("specdec_engine")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a caller chose for an engine; `LLM` documents each."""

    model: str | None
    speculative_config: Any
    limits: Limits
    dtype: str | torch.dtype
    device: torch.device
    plugins: Any
    strict: bool
    hf_model: nn.Module | None
    revision: str | None
    tokenizer: Wanted
    trust_remote_code: bool
    seed: int
    logprobs_mode: str
    log_stats: bool
    fused: bool = True
    prefix_caching: bool | None = None
    lora: str | None = None
    enforce_eager: bool = False


def build_engine(options: EngineOptions) -> Engine:
    """Build everything and check it; on any error nothing is left behind.

    Raises `ConfigError`, `TargetError` or `PluginError`.
    """
    warn_if_newer("torch", "transformers")
    dtype, registry = _checked(options)
    adapter = None if options.lora is None else Adapter.of(options.lora)
    given = Found(None, None, options.model, options.speculative_config)
    found = find_target(given, options.revision, options.hf_model, registry, options.trust_remote_code)
    source = found.source
    info = replace(
        target_info(found.model, found.hf_config, options.limits),
        revision=None if source is None else source.revision,
        extra=options.tokenizer.noted(),
    )
    resolved = None if found.speculative_config is None else resolve(found.speculative_config, info, registry)
    tokenizer = options.tokenizer.load(source)  # before the weights: what is wrong with it is reported at once
    model = options.hf_model
    if model is None:
        assert source is not None  # find_target has raised
        model = load_model(source, dtype, options.device)
        if adapter is not None:
            model = adapter.merged_into(model)
            logger.info("the adapter %r is merged into the weights of %r, for all requests", adapter.name, found.model)
    with lock_of(model), contextlib.ExitStack() as undo:
        target = _target(model, info, options.limits, registry.kernels, tokenizer)
        undo.callback(target.close)
        bytes_per_token = probe(target.flat)
        _check_states(options, target, resolved)
        states = _states(target, resolved)
        if options.fused:
            fuse(target.flat)
        if not options.enforce_eager:
            _capture(target)
        if _reuses_prefixes(options, target):
            bytes_per_token += kept_row_bytes(resolved, target.info, target.dtype)
        target.set_budget(_planned(options.limits, target, resolved, bytes_per_token, states))
        keys, speculation, reports = NoiseKeys.of(options.seed, None, None), None, None
        if resolved is not None:
            target.tap(hidden=resolved.traits.hidden, aux_layers=resolved.traits.aux_layers)
            speculation, proposer, reports = _speculation(options, resolved, target, registry)
            undo.callback(speculation.runner.close)
            if resolved.drafts and options.limits.kv_cache_tokens is None:
                target.set_budget(replan(target.kv_cache_tokens, bytes_per_token, target.device, states))
            keys = NoiseKeys.of(options.seed, resolved, proposer)
        engine = _compose(options, target, registry, resolved, keys, speculation, reports)
        if reports is not None:
            reports.started()
        undo.pop_all()
    return engine


def _capture(target: Target) -> None:
    """Have forwards of few rows captured as graphs, where they are on a GPU and no kernel of theirs needs the host."""
    if target.device.type == "cuda" and target.flat.backends["attention"] == TRITON:
        target.flat.capture = cuda_capture(target.device)
        target.flat.graphs = Replayed(target.flat.work, target.flat.capture)


def _checked(options: EngineOptions) -> tuple[str | torch.dtype, Registry]:
    """Return the dtype and the registry that options mean. Raises ConfigError or TargetError for what is neither."""
    if options.plugins is not None and not isinstance(options.plugins, Mapping):
        message = f"plugins={options.plugins!r}: expected a mapping from names to modules, objects or paths"
        raise ConfigError(message)
    if options.trust_remote_code not in (True, False):
        message = f"trust_remote_code={options.trust_remote_code!r}: expected True or False"
        raise TargetError(message)
    switches = {"fused": options.fused, "enforce_eager": options.enforce_eager}
    for name, given in {**switches, "enable_prefix_caching": options.prefix_caching}.items():
        if given not in (True, False) and (given is not None or name in switches):
            message = f"{name}={given!r}: expected True or False"
            raise TargetError(message)
    if options.lora is not None and options.hf_model is not None:
        message = (
            f"lora={options.lora!r} was given beside hf_model=, whose weights stay as they are; merge the adapter "
            f"yourself (merge_and_unload of the package peft), or name the model instead"
        )
        raise TargetError(message)
    dtype = resolve_dtype(options.dtype)
    return dtype, Registry(Catalog.discover().with_local(options.plugins), strict=options.strict)


def _speculation(
    options: EngineOptions, resolved: ResolvedConfig, target: Target, registry: Registry
) -> tuple[Speculation, Proposer, Reports]:
    """Return what drafts and verifies, the bare proposer, and who is told of it."""
    verifier = ContainedVerifier(make_verifier(resolved, registry), resolved.verifier)
    made = make_controller(resolved, registry)
    controller = made and ContainedController(made, resolved.controller or "", strict=options.strict, logger=logger)
    reports = Reports(registry, resolved, controller)
    proposer = make_proposer(resolved, target, registry, strict=options.strict)
    runner = ProposerRunner(
        proposer,
        resolved.traits,
        DraftBudget(resolved, controller, logger, cost_cut(resolved, logger)),
        target.info.vocab_size,
        Containment(resolved.method, strict=options.strict, logger=logger),
        leaves_ids=target.device.type != "cpu" and verifier.is_on_device,
    )
    top_ids, most = registry.kernels.get("top_ids", target.device), resolved.num_speculative_tokens
    exact, lengths = not resolved.verifier_lossy, target.rope_lengths
    by_length = target.flat.row_tables is not None
    speculation = Speculation(runner, verifier, top_ids, most, exact, reports.step, lengths, by_length)
    return speculation, proposer, reports


def _compose(
    options: EngineOptions,
    target: Target,
    registry: Registry,
    resolved: ResolvedConfig | None,
    keys: NoiseKeys,
    speculation: Speculation | None,
    reports: Reports | None,
) -> Engine:
    """Return the engine made of its parts."""

    def preempted(request: Request) -> None:
        if speculation is not None:
            speculation.finish(request, "preempted")

    rules = StopRules(eos_ids(target.model, target.tokenizer), min(target.info.max_model_len, target.arena.num_tokens))
    kernels = registry.kernels
    draw, truncate = (kernels.get(op, target.device) for op in ("draw", "truncate"))
    looks = target.device.type == "cpu" or (speculation is not None and not speculation.verifier.is_on_device)
    sampler = Sampler(draw, truncate, looks=looks)
    all_rows = resolved is not None and resolved.traits.rows == "all"
    prefix = PrefixCache(target, enabled=_reuses_prefixes(options, target), keeps_rows=all_rows)
    scheduler = Scheduler(target, prefix, options.limits.max_num_seqs, preempted)
    logprobs = LogprobReader(options.logprobs_mode, target.tokenizer)
    metrics = SpecMetrics() if reports is None else reports.metrics
    stepper = Stepper(target, scheduler, sampler, rules, logprobs, speculation)
    engine = Engine(
        target=target,
        registry=registry,
        resolved=resolved,
        scheduler=scheduler,
        sampler=sampler,
        rules=rules,
        keys=keys,
        submission=Submission(target, registry, resolved, sampler, rules, keys),
        stepper=stepper,
        metrics=metrics,
        reports=reports,
    )
    lossy = resolved.verifier if resolved is not None and resolved.verifier_lossy else None
    engine.stats = EngineStats(metrics, engine.measure, lossy_verifier=lossy, log=options.log_stats)
    return engine


def _target(model: nn.Module, info: TargetInfo, limits: Limits, kernels: Kernels, tokenizer: Any | None) -> Target:
    flat = FlatModel(model, info.num_layers, info.vocab_size, kernels)
    check_config(model.config, info.max_model_len, by_row=flat.row_tables is not None, states=True)
    default_chunk = FIXED_WIDTH_CHUNK if limits.decode_width is not None else CPU_CHUNK
    return Target(
        flat,
        info,
        ancestor_bits=kernels.get("ancestor_bits", "cpu"),  # of the tables of a step, which are host arrays
        max_num_seqs=limits.max_num_seqs,
        decode_width=limits.decode_width,
        prefill_chunk_size=limits.prefill_chunk_size or default_chunk,
        tokenizer=tokenizer,
    )


def _reuses_prefixes(options: EngineOptions, target: Target) -> bool:
    """Return whether prefixes are reused: pages of keys and values hold no recurrent states."""
    return options.prefix_caching is not False and not target.flat.keeps_states


def _check_states(options: EngineOptions, target: Target, resolved: ResolvedConfig | None) -> None:
    """Say what a target with recurrent states cannot have; raises where it is asked for.

    ConfigError for a method that drafts trees, whose branches a state cannot follow; TargetError for prefix reuse.
    """
    if not target.flat.keeps_states:
        return
    if resolved is not None and resolved.traits.shape == "tree":
        message = f"method: {trees_problem(resolved.method)}; set {resolved.method} up for chains"
        raise ConfigError(message)
    what = f"layers of {type(target.flat.model).__name__} keep recurrent states, so no prefix is reused"
    if options.prefix_caching:
        message = f"enable_prefix_caching=True: {what}; leave it out"
        raise TargetError(message)
    if options.prefix_caching is None:
        logger.info("%s", what)


def _states(target: Target, resolved: ResolvedConfig | None) -> States:
    """Return what recurrent states of all requests take; each keeps the drafts of one step besides."""
    drafts = 0 if resolved is None else resolved.num_speculative_tokens
    return States(target.max_num_seqs, target.flat.state_bytes + max(drafts, 1) * target.flat.state_row_bytes)


def _planned(
    limits: Limits, target: Target, resolved: ResolvedConfig | None, bytes_per_token: int, states: States
) -> int:
    """Return the positions of the KV arena."""
    coming = draft_bytes(resolved, target.info)
    most = limits.max_num_seqs * target.info.max_model_len
    wanted = limits.kv_cache_tokens
    if wanted is None and limits.kv_cache_memory_bytes is not None:
        room = max(0, limits.kv_cache_memory_bytes - states.bytes)
        wanted = max(1, min(most, room // max(bytes_per_token, 1)))
    return plan(wanted, most, bytes_per_token, target.device, coming, limits.gpu_memory_utilization, states)
