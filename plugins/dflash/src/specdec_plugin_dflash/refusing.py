"""Which checkpoints near DFlash and DSpark are not built here, each by name and with the reason; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specdec_core.config.rope import rope_problem
from specdec_core.sources import DraftSource
from specdec_nn.checkpoints.speculators import TYPE
from specdec_plugin_dflash import names, reading
from specdec_plugin_dflash.names import DFLASH, DSPARK
from specdec_plugin_dflash.speculators import SECOND_KEYS, XPRESS

Refusal = tuple[str, str, str]  # what is wrong, the next step, the key

# Blocks of these families are wired in ways that nothing here builds.
OTHER_FAMILIES: Final = ("gemma", "deepseek", "cohere", "gptoss")
FACTORS: Final = ("input_embedding_scale", "logit_scale")
HEAD_OF_ANOTHER: Final = "give the checkpoint of a head, or the method that it belongs to"


def unbuilt(method: str, draft: DraftSource, shapes: Mapping[str, object]) -> Refusal | None:
    """Return why a checkpoint cannot be the head of `method`, None if nothing speaks against it."""
    config, architecture = draft.hf_config, next(iter(draft.architectures), "")
    if "mask_hidden" in shapes:
        message = "it has the tensor mask_hidden, which makes it a P-EAGLE head"
        return message, 'use "method": "eagle3"', "method"
    refiner = _refiner(config, shapes)
    if refiner is not None:
        message = f"it is an XPress head ({refiner}), and the refiner behind its block is not built here"
        return message, "give a DFlash head without one, or a DSpark head", "model"
    gated = _gated(config, shapes)
    if gated is not None:
        message = f"it is a head with {gated}, and only DSpark's plain (vanilla) Markov heads are built here"
        return message, "give a DSpark head with a vanilla Markov head", "model"
    second = _second_generation(config, architecture, shapes)
    if second is not None:
        message = f"it is a DFlash2 or LiLiCorr head ({second}), whose convolutions and selectors are not built here"
        return message, "give a DFlash or DSpark head", "model"
    family = f"{architecture} {config.get('model_type') or ''}".lower().replace("_", "")
    if any(name in family for name in OTHER_FAMILIES):
        return f"heads made of layers of {family.strip()!r} are not built here", "those of Qwen3 layers are", "model"
    if f"layers.0.{names.LAYER[1]}" not in shapes or names.HIDDEN_NORM not in shapes:
        some = ", ".join(sorted(shapes)[:6]) or "none"
        message = f"its tensors are not those of a head, which has {names.HIDDEN_NORM} and layers (it has {some}, ...)"
        return message, HEAD_OF_ANOTHER, "model"
    if (names.W1 in shapes) != (method == DSPARK):
        other = DFLASH if method == DSPARK else DSPARK
        word = "no" if method == DSPARK else "a"
        message = f"method {method} was asked for, and it has {word} Markov head ({names.W1})"
        return message, f'use "method": "{other}"', "method"
    if method == DFLASH and reading.samples_anchor(config, method_default=False):
        message = "its config.json says sample_from_anchor true: the row of the newest id would be a draft already"
        return message, "only dspark heads do so; correct its config.json", "model"
    for key in FACTORS:
        factor = reading.setting(config, key, 1.0)
        if factor != 1.0:
            return f"its config.json has {key} {factor!r}, and such a factor is not applied here", "", "model"
    rope = rope_problem(config)
    return None if rope is None else (rope, "give a head whose positions are of a known type", "model")


def _refiner(config: Mapping[str, object], shapes: Mapping[str, object]) -> str | None:
    """Return what makes it an XPress head, None if nothing does."""
    said = [f"{key} {XPRESS!r}" for key in (TYPE, "markov_head_type") if config.get(key) == XPRESS]
    said += sorted(name for name in (*config, *shapes) if name.startswith((XPRESS, "refiner_head.")))
    return said[0] if said else None


def _gated(config: Mapping[str, object], shapes: Mapping[str, object]) -> str | None:
    """Return what makes its Markov head a gated one, None if nothing does."""
    kind = config.get("markov_head_type")
    if isinstance(kind, str) and "gat" in kind.lower():
        return f"a gated Markov head (markov_head_type {kind!r})"
    found = [name for name in sorted(shapes) if name.startswith("markov_head.") and "gate" in name]
    return f"a gated Markov head (tensor {found[0]})" if found else None


def _second_generation(config: Mapping[str, object], architecture: str, shapes: Mapping[str, object]) -> str | None:
    """Return what makes it DFlash2 or LiLiCorr, None if nothing does."""
    if architecture.startswith(("DFlash2", "LiLiCorr")):
        return f"architectures {architecture}"
    keys = [key for key in SECOND_KEYS if reading.setting(config, key) is not None]
    found = [name for name in sorted(shapes) if "conv" in name or "selector" in name]
    return f"{reading.SECTION}.{keys[0]}" if keys else f"tensor {found[0]}" if found else None
