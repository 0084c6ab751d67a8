"""Checks that follow from traits alone, once and in one wording for all methods; k is checked in `derived_values`."""

from __future__ import annotations

from specdec_core.config.recurrent import states_of, trees_problem
from specdec_core.config.resolution import Resolution
from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource
from specdec_core.traits import MethodTraits

DRAWS = "draft_sample_method"


def check_checkpoint(resolution: Resolution, method: str, traits: MethodTraits, draft: DraftSource | None) -> bool:
    """Check that there is a draft checkpoint where the traits need one, and none where not.

    Returns whether the method's own check can be asked: not without a checkpoint that it needs.
    """
    model = resolution.config.model
    if draft is None and traits.weights == "own":
        message = f"{method} needs a draft checkpoint, and none was given"
        resolution.problem("model", message, "give its folder, weight file or hub id as model")
        return False
    if draft is None and traits.weights == "target":
        resolution.decide("model", resolution.target.model, "the drafter is inside the target's checkpoint")
    elif traits.weights == "none" and draft is not None:
        resolution.problem("model", f"{method} has no draft checkpoint, got {draft.model!r}", "leave model out")
    elif draft is not None:
        try:
            _ = draft.hf_config
            if draft.model == model:
                note = f"; {resolution.model_note}" if resolution.model_note else ""
                resolution.decide("model", draft.model, f"given; the draft checkpoint{note}")
        except ConfigError as error:
            resolution.problem("model", str(error))
    return True


def check_shape(resolution: Resolution, method: str, traits: MethodTraits) -> None:
    """Check that drafts have a shape that the target's layers can follow."""
    if traits.shape == "tree" and states_of(resolution.target.hf_config) is not None:
        resolution.problem("method", trees_problem(method), f"set {method} up for chains")


def check_draws(resolution: Resolution, method: str, traits: MethodTraits) -> None:
    """Check how drafts are drawn: as the traits declare, and on a tree not with the target's own noise."""
    given = resolution.config.draft_sample_method
    distribution = {"greedy": "deterministic", "probabilistic": "soft"}.get(given or "")
    if distribution is None:
        return
    if distribution != traits.draft_distribution:
        asked, has = ("sampled", "fixed") if distribution == "soft" else ("fixed", "sampled")
        what = "the trees" if traits.shape == "tree" else "the drafts"
        message = f"{given!r} asks for {asked} drafts, and {what} of {method} are {has} here"
        resolution.problem(DRAWS, message, "leave it out" + (", or draft chains" if traits.shape == "tree" else ""))
    elif traits.shares_noise and traits.shape == "tree":
        message = (
            f"with the target's own noise there is one draw a place, and a tree of {method} has several tokens there"
        )
        resolution.problem(DRAWS, message, "use rejection_sample_method 'standard', or draft chains")
    else:
        resolution.decide(DRAWS, given, "given")
