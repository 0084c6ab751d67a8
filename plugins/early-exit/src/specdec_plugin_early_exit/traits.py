"""What a configured early exit needs and gives, and what is wrong with it; reads JSON files and loads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Note, Problem, language_config
from specdec_core.traits import MethodTraits
from specdec_nn.hf.families import RUNNABLE_LAYER_TYPES
from specdec_plugin_early_exit.exit_layer import exit_of
from specdec_plugin_early_exit.options import EarlyExitOptions

K: Final = 4


def traits_of(ctx: MethodContext[EarlyExitOptions]) -> MethodTraits:
    """Return the traits."""
    return MethodTraits(
        draft_distribution="soft" if ctx.samples_drafts else "deterministic",
        shares_noise=ctx.shares_noise,
        weights="target",
        when_off="catch_up",
        first_layers=exit_of(ctx.options.exit_layer, ctx.target)[0],
    )


def defaults_of(ctx: MethodContext[EarlyExitOptions]) -> Sequence[Default]:
    """Return k."""
    return [Default(key="num_speculative_tokens", value=K, reason=f"{K} drafts, each a pass through the first layers")]


def problems_of(ctx: MethodContext[EarlyExitOptions]) -> Sequence[Problem | Note]:
    """Return everything that is wrong, and how the exit layer was found."""
    return list(_said(ctx))


def _said(ctx: MethodContext[EarlyExitOptions]) -> Iterator[Problem | Note]:
    target, layers = ctx.target, ctx.target.num_layers
    count, reason = exit_of(ctx.options.exit_layer, target)
    if layers < 2:
        message = "the target has a single layer, of which no part could draft"
        yield Problem(key="method", message=message, next_step="use another method")
    elif count >= layers:
        message = f"is {count} ({reason}), and the target has {layers} layers, of which at least one is to be left"
        yield Problem(key="exit_layer", message=message, next_step=f"give 1 to {layers - 1}")
    elif ctx.options.exit_layer is None:
        yield Note(key="exit_layer", value=count, reason=reason)
    types = enumerate(language_config(target.hf_config).get("layer_types") or ())
    strange = next(((i, kind) for i, kind in types if kind not in RUNNABLE_LAYER_TYPES), None)
    if strange is not None:
        message = (
            f"layer {strange[0]} of the target is of type {strange[1]!r}, and drafts can be run and dropped in layers "
            f"of type {' and '.join(sorted(RUNNABLE_LAYER_TYPES))} alone"
        )
        yield Problem(key="method", message=message, next_step="use another method for this target")
    if ctx.draft is not None and ctx.draft.original.model != target.model:
        message = f"{ctx.draft.original.model!r} given, and the drafter is the target itself, {target.model!r}"
        yield Problem(key="model", message=message, next_step="leave model out")
