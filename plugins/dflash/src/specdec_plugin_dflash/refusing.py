"""Which checkpoints near DFlash and DSpark are not built here, each by name and with the reason; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from specdec_core.config.rope import rope_problem
from specdec_core.sources import DraftSource
from specdec_nn.checkpoints.speculators import TYPE
from specdec_plugin_dflash import names, reading
from specdec_plugin_dflash.additions import kind_of
from specdec_plugin_dflash.names import DFLASH, DSPARK
from specdec_plugin_dflash.speculators import XPRESS

Refusal = tuple[str, str, str]  # what is wrong, the next step, the key

# Blocks of these families are wired in ways that nothing here builds; the first that fits gives the reason.
OTHER_FAMILIES: Final[Mapping[str, str]] = {
    "gemma": "Gemma's layers have norms behind attention and MLP as well, values that may be normed keys, and sizes of "
    "heads and rotary tables by kind of layer",
    "deepseekv4": "DeepSeek V4's layers carry several residual streams; such heads are in the target's own files and "
    "read means over its streams, which no host delivers",
    "deepseek": "DeepSeek's layers have latent attention",
    "k3dspark": "Kimi K3's layers have latent attention",
    "kimi": "Kimi's layers have latent attention",
    "cohere": "Cohere's layers run attention and MLP side by side",
    "gptoss": "gpt-oss' layers have experts",
}
OMNI: Final = "Qwen3OmniDSparkModel"  # of Qwen3's layers, with fewer settings
FACTORS: Final = ("input_embedding_scale", "logit_scale")  # the first is of DFlash2 heads, which apply it
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
    kind = kind_of(config, architecture, shapes)
    if method == DSPARK and kind is not None:
        message = f"it is a {kind} head, and the method is {DSPARK}"
        return message, f'use "method": "{DFLASH}"', "method"
    family = f"{architecture} {config.get('model_type') or ''}".lower().replace("_", "")
    other = next((reason for name, reason in OTHER_FAMILIES.items() if name in family), None)
    if other is not None:
        message = f"heads made of layers of {family.strip()!r} are not built here: {other}"
        return message, "those of Qwen3 layers are", "model"
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
        message = "its config.json has sample_from_anchor true: the row of the newest id would be a draft already"
        return message, "only dspark heads do so; correct its config.json", "model"
    for key in FACTORS if kind is None else FACTORS[1:]:
        factor = reading.setting(config, key, 1.0)
        if factor != 1.0:
            return f"its config.json has {key} {factor!r}, and such a factor is not applied here", "", "model"
    rope = rope_problem(config)
    return None if rope is None else (rope, "give a head whose positions are of a known type", "model")


def omni_problem(config: Mapping[str, object], architecture: str) -> str | None:
    """Return what contradicts the settings of a Qwen3-Omni DSpark head, None if nothing does and for other heads."""
    if architecture != OMNI:
        return None
    if not reading.samples_anchor(config, method_default=True):
        return f"it is a {OMNI}, whose first place is the row of the newest id, and its config.json differs"
    for key in ("dspark_target_layer_ids", "target_layer_ids"):
        ids = config.get(key)
        if isinstance(ids, list) and any(a >= b for a, b in pairwise(ids)):
            return f"it is a {OMNI}, whose {key} ascend, and its config.json has {ids}"
    return None


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
