"""What a configured adapter needs and gives, and what is wrong with it; loads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Problem, language_config
from specdec_core.traits import MethodTraits
from specdec_nn.hf.families import RUNNABLE_LAYER_TYPES
from specdec_plugin_kangaroo.layout import KangarooReader
from specdec_plugin_kangaroo.options import KangarooOptions

K: Final = 6


def traits_of(ctx: MethodContext[KangarooOptions]) -> MethodTraits:
    """Return the traits; without an exit layer, which the check asks for, those of the first layer."""
    layer = min(ctx.options.exit_layer or 1, max(1, ctx.target.num_layers - 1))
    return MethodTraits(
        rows="all",
        aux_layers=(layer,),
        draft_distribution="soft" if ctx.samples_drafts else "deterministic",
        shares_noise=ctx.shares_noise,
        weights="own",
        when_off="gap",
        first_layers=layer,
    )


def defaults_of(ctx: MethodContext[KangarooOptions]) -> Sequence[Default]:
    """Return k."""
    reason = f"at most {K} drafts, as the authors publish; most end earlier by draft_confidence_threshold"
    return [Default(key="num_speculative_tokens", value=K, reason=reason)]


def problems_of(ctx: MethodContext[KangarooOptions]) -> Sequence[Problem]:
    """Return everything that is wrong with the checkpoint, the exit layer and the target."""
    reading = KangarooReader(ctx.checkpoint, ctx.target)
    reading.layout()
    return [*_of_target(ctx), *reading.problems]


def _of_target(ctx: MethodContext[KangarooOptions]) -> Iterator[Problem]:
    layer, layers = ctx.options.exit_layer, ctx.target.num_layers
    if layers < 2:
        message = "the target has a single layer, of which no part could draft"
        yield Problem(key="method", message=message, next_step="use another method")
    elif layer is None:
        message = "left out, and nothing in an adapter's checkpoint names the layer that it was trained behind"
        step = f"give 1 to {layers - 1}; the authors' commands have 2 for their adapter of vicuna-7b"
        yield Problem(key="exit_layer", message=message, next_step=step)
    elif layer >= layers:
        message = f"is {layer}, and the target has {layers} layers, of which at least one is to be left"
        yield Problem(key="exit_layer", message=message, next_step=f"give 1 to {layers - 1}")
    types = enumerate(language_config(ctx.target.hf_config).get("layer_types") or ())
    strange = next(((i, kind) for i, kind in types if kind not in RUNNABLE_LAYER_TYPES), None)
    if strange is not None:
        message = (
            f"layer {strange[0]} of the target is of type {strange[1]!r}, and drafts can be run and dropped in layers "
            f"of type {' and '.join(sorted(RUNNABLE_LAYER_TYPES))} alone"
        )
        yield Problem(key="method", message=message, next_step="use another method for this target")
