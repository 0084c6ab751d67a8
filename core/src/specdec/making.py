"""From a resolved configuration to the objects of the loop, the same way in every host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec.protocols import Controller, Proposer, Verifier

if TYPE_CHECKING:
    from specdec.config import ResolvedConfig
    from specdec.loader import Registry
    from specdec.sources import TargetHandle


def make_verifier(resolved: ResolvedConfig, registry: Registry) -> Verifier:
    """Build the verifier; raises MakeStageError."""
    made: Verifier = registry.make(
        resolved.verifier_plugin,
        "specdec_make_verifier",
        Verifier,
        method=resolved.verifier,
        config=resolved,
        options=resolved.verifier_options,
        traits=resolved.traits,
        registry=registry,
    )
    return made


def make_controller(resolved: ResolvedConfig, registry: Registry) -> Controller | None:
    """Build the controller, None where the configuration names none; raises MakeStageError."""
    if resolved.controller_plugin is None:
        return None
    made: Controller = registry.make(
        resolved.controller_plugin,
        "specdec_make_controller",
        Controller,
        method=resolved.controller,
        config=resolved,
        options=resolved.controller_options,
    )
    return made


def make_proposer(resolved: ResolvedConfig, target: TargetHandle, registry: Registry) -> Proposer:
    """Build the proposer for a loaded target; raises MakeStageError."""
    made: Proposer = registry.make(
        resolved.plugin,
        "specdec_make_proposer",
        Proposer,
        method=resolved.method,
        config=resolved,
        options=resolved.options,
        draft=resolved.draft,
        target=target,
        registry=registry,
    )
    return made
