"""From a resolved configuration to the objects of the loop, the same way in every host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.errors import MakeStageError
from specdec_core.protocols import Controller, Proposer, Remembers, Verifier

if TYPE_CHECKING:
    from specdec_core.config.speculative import ResolvedConfig
    from specdec_core.registry.loader import Registry
    from specdec_core.sources import TargetHandle


def make_verifier(resolved: ResolvedConfig, registry: Registry) -> Verifier:
    """Build the verifier; raises MakeStageError."""
    made: Verifier = registry.make(
        registry.plugin(resolved.verifier_record),
        "specdec_make_verifier",
        Verifier,
        method=resolved.verifier,
        config=resolved,
        options=resolved.verifier_options,
        traits=resolved.traits,
        kernels=registry.kernels,
    )
    return made


def make_controller(resolved: ResolvedConfig, registry: Registry) -> Controller | None:
    """Build the controller, None where the configuration names none; raises MakeStageError."""
    if resolved.controller_record is None:
        return None
    made: Controller = registry.make(
        registry.plugin(resolved.controller_record),
        "specdec_make_controller",
        Controller,
        method=resolved.controller,
        config=resolved,
        options=resolved.controller_options,
    )
    return made


def make_proposer(
    resolved: ResolvedConfig, target: TargetHandle, registry: Registry, *, strict: bool = False
) -> Proposer:
    """Build the proposer for a loaded target; raises MakeStageError, also for one that remembers without a digest.

    `strict` is what the host does with errors of plugins, for methods that are made of others.
    """
    build = ProposerBuild(
        target=target,
        kernels=registry.kernels,
        num_speculative_tokens=resolved.num_speculative_tokens,
        max_model_len=resolved.max_model_len,
        traits=resolved.traits,
        verifier=resolved.verifier,
        strict=strict,
        make=lambda part: make_proposer(part, target, registry, strict=strict),
    )
    plugin, ctx = registry.plugin(resolved.record), MethodContext.of(resolved, target.info)
    made: Proposer = registry.make(plugin, "specdec_make_proposer", Proposer, ctx=ctx, build=build)
    if resolved.traits.remembers and not isinstance(made, Remembers):
        made.close()
        problem = (
            f"its traits declare `remembers`, and the proposer {type(made).__name__} has no memory_digest(); "
            "without it no seeded run could be repeated with noise that is independent of what is remembered"
        )
        step = "Tell the authors of the plugin to add memory_digest(), see specdec_core.protocols.Remembers."
        raise MakeStageError(resolved.record, problem, step)
    return made


def memory_digest(resolved: ResolvedConfig, proposer: Proposer) -> bytes | None:
    """Return what a proposer knew before any request, as a digest; None where, by its traits, it remembers nothing.

    To be asked before any `start`. Raises MakeStageError where the proposer fails or returns something else.
    """
    if not resolved.traits.remembers or not isinstance(proposer, Remembers):
        return None
    try:
        digest: object = proposer.memory_digest()
    except Exception as error:
        problem = f"memory_digest() failed: {type(error).__name__}: {error}"
        raise MakeStageError(resolved.record, problem, "Tell the authors of the plugin.") from error
    if not isinstance(digest, bytes):
        problem = f"memory_digest() returned {type(digest).__name__}, expected bytes"
        raise MakeStageError(resolved.record, problem, "Tell the authors of the plugin.")
    return digest
