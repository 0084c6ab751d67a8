"""Behind which layer drafts leave the target: as given, as the checkpoint names it, or a quarter of the depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.config import checkpoint
from specdec_core.errors import ConfigError
from specdec_core.sources import CONFIG, JSON_FILES, Detection, DraftSource, TargetInfo, language_config

METHOD: Final = "early_exit"
KEY: Final = "assistant_early_exit"  # of transformers' GenerationConfig
GENERATION_CONFIG: Final = "generation_config.json"
DEPTH: Final = 4  # of so many layers one drafts, where nothing names a number: 8 of 32, as in LayerSkip's examples


def exit_of(given: int | None, target: TargetInfo) -> tuple[int, str]:
    """Return the number of layers that draft, and why it is this one."""
    if given is not None:
        return given, "given"
    named = named_exit(target.model, target.hf_config, target.revision)
    if named is not None:
        return named[0], f"{KEY} in the target's {named[1]}"
    reason = f"a quarter of the target's {target.num_layers} layers; its checkpoint names none"
    return max(1, target.num_layers // DEPTH), reason


def named_exit(model: str | None, config: Mapping[str, Any], revision: str | None) -> tuple[int, str] | None:
    """Return the number that a checkpoint names and the file in which it does, None if it names none.

    `config` is its config.json, `model` its folder or hub id, None for a model that came as an object.
    """
    named = _number(language_config(config))
    if named is not None:
        return named, CONFIG
    if model is None:
        return None
    try:
        file = checkpoint.locate(model, JSON_FILES, revision) / GENERATION_CONFIG
        named = _number(checkpoint.read_json_object(file)) if file.is_file() else None
    except ConfigError:
        return None  # a target that cannot be read is refused by who loads it
    return None if named is None else (named, GENERATION_CONFIG)


def _number(config: Mapping[str, Any]) -> int | None:
    value = config.get(KEY)
    return value if type(value) is int and value > 0 else None


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint that names the layer behind which it drafts for itself."""
    named = named_exit(draft.model, draft.hf_config, draft.revision)
    if named is None:
        return None
    return Detection(method=METHOD, strength="certain", evidence=(f"{KEY} {named[0]} in {named[1]}",))
