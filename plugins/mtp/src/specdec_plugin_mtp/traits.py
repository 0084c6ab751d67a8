"""What configured MTP modules need and give, which k they ask for and where they are; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, TargetInfo
from specdec_core.traits import MethodTraits
from specdec_nn.checkpoints.speculators import SECTION
from specdec_plugin_mtp.options import MtpOptions
from specdec_plugin_mtp.reading import Reading


def default_model_of(target: TargetInfo) -> Default | None:
    """Return the target's checkpoint, None for a target that came as an object."""
    if target.model is None:
        return None
    return Default(key="model", value=target.model, reason="MTP modules are in the target's own checkpoint")


def defaults_of(ctx: MethodContext[MtpOptions]) -> Sequence[Default]:
    """Return k: what the file proposes, or the number of modules, if the checkpoint gives it."""
    reading = None if ctx.draft is None else Reading.of(ctx.draft)
    if reading is None or reading.family is None or reading.n_predict is None:
        return []
    if reading.family.recursive and reading.proposed is not None:
        said = f"{SECTION} of the checkpoint proposes {reading.proposed} tokens a step"
        return [Default(key="num_speculative_tokens", value=reading.proposed, reason=said)]
    reason = f"n_predict of {reading.family.title}: {reading.said[1]} is {reading.n_predict}"
    return [Default(key="num_speculative_tokens", value=reading.n_predict, reason=reason)]


def traits_of(ctx: MethodContext[MtpOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    reading = None if ctx.draft is None else Reading.of(ctx.draft)
    family = None if reading is None else reading.family
    residual, keys = (family is not None and family.reads == what for what in ("residual", "keys"))
    counts = reading is not None and not (keys or (family is not None and family.recursive))
    return MethodTraits(
        rows="last" if keys else "all",
        hidden=not residual,
        aux_layers=(ctx.target.num_layers,) if residual else (),
        draft_distribution="soft" if ctx.samples_drafts else "deterministic",
        shares_noise=ctx.shares_noise,
        weights="own" if keys else "target",
        n_predict=reading.n_predict if counts and reading is not None else None,
        when_off="gap",
        target_keys=keys,
    )
