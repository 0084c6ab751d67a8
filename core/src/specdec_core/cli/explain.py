"""`specdec explain`: what a speculative configuration means for a model, decision by decision; loads no weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from specdec_core.cli.listing import print_table
from specdec_core.cli.output import emit
from specdec_core.config.checkpoint import locate
from specdec_core.config.detect import load_target_as, swap_target
from specdec_core.config.recurrent import states_of
from specdec_core.config.remote_code import TARGET_PERMISSION, code_of_checkpoint
from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import Decision, ResolvedConfig, SpeculativeConfig
from specdec_core.errors import ConfigError, TargetError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import JSON_FILES, DraftSource, TargetInfo


def explain(
    catalog: Catalog,
    model: str,
    config: str,
    max_model_len: int | None,
    as_json: bool,
    trust_remote_code: bool = False,
) -> None:
    """Print what `resolve` decides and why; raises what it raises, and TargetError for a model that would not load."""
    registry = Registry(catalog)
    target, wanted, first = _target(registry, model, config, max_model_len)
    if not trust_remote_code:
        _refuse_code(target, wanted, registry)
    resolved = resolve(wanted, target, registry)
    decisions = (*first, *resolved.decisions)
    if as_json:
        data = {**resolved.as_json(), "target": target.model, "decisions": [asdict(each) for each in decisions]}
        emit(json.dumps(data, indent=1, default=str))
    else:
        _print(resolved, target, decisions)


def _target(
    registry: Registry, model: str, config: str, max_model_len: int | None
) -> tuple[TargetInfo, Any, tuple[Decision, ...]]:
    """Return the target and the configuration, or those that a draft checkpoint given as the model stands for."""
    try:
        return TargetInfo.from_folder(model, max_model_len), config, ()
    except TargetError:
        try:
            swap = swap_target(DraftSource(model), registry)
        except ConfigError:
            swap = None
        if swap is None:
            raise
    merged = SpeculativeConfig.parse({**SpeculativeConfig.parse(config).as_json(), **swap.speculative_config})
    decision = Decision("target", swap.model, swap.reason)
    return TargetInfo.from_folder(swap.model, max_model_len), merged, (decision,)


def _refuse_code(target: TargetInfo, config: Any, registry: Registry) -> None:
    """Raise TargetError for a target that needs code of its own, also as the method would have it loaded."""
    source = DraftSource(target.model or "")
    folder = locate(source.model, JSON_FILES)
    code = code_of_checkpoint(folder, target.hf_config)
    if code is None:
        return
    found = load_target_as(source, SpeculativeConfig.parse(config), registry)
    if found is not None:
        code = code_of_checkpoint(folder, {**target.hf_config, **found[1]})
    if code is not None:
        raise TargetError(f"model {code.message(source.model, TARGET_PERMISSION)}")


def _print(resolved: ResolvedConfig, target: TargetInfo, decisions: tuple[Decision, ...]) -> None:
    verifier, states = resolved.verifier_record, states_of(target.hf_config)
    facts: list[tuple[str, Any]] = [
        ("target", f"{target.model}: {target.num_layers} layers, {target.max_model_len} positions"),
        *((("recurrent states", str(states)),) if states is not None else ()),
        ("method", f"{resolved.method} ({resolved.record.distribution} {resolved.record.version})"),
        ("num_speculative_tokens", resolved.num_speculative_tokens),
        ("draft", _draft(resolved)),
        ("max_model_len", resolved.max_model_len),
        ("draft devices", resolved.draft_tensor_parallel_size),
        ("slots ahead", resolved.num_lookahead_slots),
        ("verifier", f"{resolved.verifier} ({verifier.distribution} {verifier.version})"),
        ("lossless", "yes" if resolved.lossless else "no: the verifier changes the target's distribution"),
        ("options", _pairs(resolved.options.model_dump(mode="json"))),
        ("traits", _pairs(asdict(resolved.traits))),
        ("hash", resolved.compute_hash()),
    ]
    print_table(("what", "is"), facts)
    print()
    print_table(("decision", "value", "reason"), ((each.key, each.value, each.reason) for each in decisions))


def _draft(resolved: ResolvedConfig) -> str:
    """Return where the weights of the drafter are from."""
    if resolved.draft is None:
        return "inside the target" if resolved.traits.weights == "target" else "no checkpoint"
    at = f" at revision {resolved.draft.revision}" if resolved.draft.revision else ""
    return f"{resolved.draft.model}{at}"


def _pairs(data: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in data.items()) or "none"
