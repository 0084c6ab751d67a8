"""`specdec explain`: what a speculative configuration means for a model, decision by decision; loads no weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from specdec.catalog import Catalog
from specdec.cli_list import print_table
from specdec.config import Decision, ResolvedConfig, SpeculativeConfig
from specdec.detect import swap_target
from specdec.errors import ConfigError, TargetError
from specdec.loader import Registry
from specdec.resolve import resolve
from specdec.sources import DraftSource, TargetInfo


def explain(catalog: Catalog, model: str, config: str, max_model_len: int | None, as_json: bool) -> None:
    """Print what `resolve` decides and why; raises what it raises."""
    registry = Registry(catalog)
    read = SpeculativeConfig.parse(config)
    target, read, first = _target(registry, model, read, max_model_len)
    resolved = resolve(read, target, registry)
    decisions = (*first, *resolved.decisions)
    if as_json:
        data = {**resolved.as_json(), "target": target.model, "decisions": [asdict(each) for each in decisions]}
        print(json.dumps(data, indent=1, default=str))
    else:
        _print(resolved, target, decisions)


def _target(
    registry: Registry, model: str, config: SpeculativeConfig, max_model_len: int | None
) -> tuple[TargetInfo, SpeculativeConfig, tuple[Decision, ...]]:
    """Return the target, or the one that a draft checkpoint given as the model stands for."""
    try:
        return TargetInfo.from_folder(model, max_model_len), config, ()
    except TargetError:
        try:
            swap = swap_target(DraftSource(model), registry)
        except ConfigError:
            swap = None
        if swap is None:
            raise
    merged = SpeculativeConfig.parse({**config.as_json(), **swap.speculative_config})
    decision = Decision("target", swap.model, swap.reason)
    return TargetInfo.from_folder(swap.model, max_model_len), merged, (decision,)


def _print(resolved: ResolvedConfig, target: TargetInfo, decisions: tuple[Decision, ...]) -> None:
    verifier = resolved.verifier_record
    facts: list[tuple[str, Any]] = [
        ("target", f"{target.model}: {target.num_layers} layers, {target.max_model_len} positions"),
        ("method", f"{resolved.method} ({resolved.record.distribution} {resolved.record.version})"),
        ("num_speculative_tokens", resolved.num_speculative_tokens),
        ("max_model_len", resolved.max_model_len or "no limit of its own"),
        ("verifier", f"{resolved.verifier} ({verifier.distribution} {verifier.version})"),
        ("lossless", "yes" if resolved.lossless else "no: the verifier changes the target's law"),
        ("options", _pairs(resolved.options.model_dump(mode="json"))),
        ("traits", _pairs(asdict(resolved.traits))),
    ]
    print_table(("what", "is"), facts)
    print()
    print_table(("decision", "value", "reason"), ((each.key, each.value, each.reason) for each in decisions))


def _pairs(data: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in data.items()) or "none"
