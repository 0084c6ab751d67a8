"""Is a checkpoint a whole language model that can draft; evidence is config.json and tensors, never the path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.errors import ConfigError
from specdec_core.sources import Detection, DraftSource

METHOD: Final = "draft_model"
PARD_TOKEN, SPD_TYPE, PARD = "pard_token", "spd_type", "pard"
CAUSAL: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# Words in model_type and architectures of drafters that are no language models of their own.
OTHER_KINDS: Final = ("eagle", "medusa", "mlp_speculator", "mlpspeculator", "dflash", "dspark", "mtp", "speculator")
OTHER_KEYS: Final = ("speculators_model_type", "eagle_config", "dflash_config", "medusa_num_heads", "draft_vocab_size")
# Tensors that a language model has not, and heads over a target's hidden states have.
HEAD_TENSORS: Final = frozenset({"fc.weight", "eagle_linear.weight", "mask_hidden", "hidden_norm.weight", "d2t"})


def other_kind(draft: DraftSource) -> str | None:
    """Return what shows in config.json that a checkpoint is another kind of drafter, None if nothing does."""
    config = draft.hf_config
    for key in OTHER_KEYS:
        if config.get(key) is not None:
            return f"{key} in config.json"
    model_type = str(config.get("model_type") or "")
    for name, said in (("model_type", model_type), *(("architectures", each) for each in draft.architectures)):
        if any(word in said.lower() for word in OTHER_KINDS):
            return f"{name} {said!r}"
    return None


def mask_token(config: Mapping[str, Any]) -> int | None:
    """Return the id of PARD's mask token, None if config.json names none."""
    token = config.get(PARD_TOKEN)
    return token if type(token) is int and token >= 0 else None


def is_pard(config: Mapping[str, Any]) -> bool:
    """Return whether config.json calls the checkpoint PARD's."""
    return config.get(SPD_TYPE) == PARD and mask_token(config) is not None


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if it is no whole language model.

    Every such model may draft, so without PARD's keys nothing more can be said than that it is possible.
    """
    causal = [name for name in draft.architectures if name.endswith(CAUSAL)]
    if not causal or other_kind(draft) is not None:
        return None
    try:
        names = draft.tensor_names
    except ConfigError:
        return None  # a checkpoint that cannot be read is nobody's; what is wrong is said by who is asked for it
    if not names or any(name.removeprefix("model.") in HEAD_TENSORS for name in names):
        return None
    config = draft.hf_config
    evidence = f"architectures {causal}"
    if is_pard(config):
        said = (f"{SPD_TYPE} {PARD!r}", f"{PARD_TOKEN} {mask_token(config)}")
        return Detection(method=METHOD, strength="certain", evidence=(*said, evidence))
    if mask_token(config) is not None:
        said_token = f"{PARD_TOKEN} {mask_token(config)}"
        return Detection(method=METHOD, strength="likely", evidence=(said_token, evidence))
    return Detection(method=METHOD, strength="possible", evidence=(evidence, f"{len(names)} tensors"))
