"""Whether a checkpoint needs code of its own to be loaded; reads JSON, runs and imports nothing of the checkpoint.

A checkpoint names its own classes under `auto_map` of config.json and of tokenizer_config.json, and may bring a way of
generating in the folder `custom_generate`. Where transformers has a class of its own for the same type, that class is
used without permission and nothing of the checkpoint runs, as transformers does with `trust_remote_code=False`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec_core.config.checkpoint import read_json_object

TOKENIZER_CONFIG: Final = "tokenizer_config.json"
AUTO_MAP: Final = "auto_map"
CUSTOM_GENERATE: Final = "custom_generate/generate.py"
TARGET_PERMISSION: Final = "trust_remote_code=True (command line: --trust-remote-code)"
DRAFT_PERMISSION: Final = '"trust_remote_code": true in the speculative configuration'


@dataclass(frozen=True)
class NeededCode:
    """Code that has to run before a checkpoint can be loaded as its authors meant it.

    file    where the checkpoint names it, or the file itself
    what    the entry of `auto_map`, or what the file does
    reason  why it cannot be done without
    """

    file: str
    what: str
    reason: str

    def message(self, model: str, permission: str) -> str:
        """Return the refusal, without a next step."""
        return (
            f"{model!r} needs code of its own, which is not run without permission: {self.file} {self.what}, and "
            + (f"{self.reason}. Read that code, then allow it with {permission}")
        )


def code_of_model(config: Mapping[str, Any]) -> NeededCode | None:
    """Return the code that a causal language model with this config.json needs, None if it needs none.

    transformers is imported only if the config names any code.
    """
    named = _auto_map(config)
    if not named:
        return None
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type = config.get("model_type")
    known = {"AutoConfig": CONFIG_MAPPING, "AutoModelForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    for entry, mapping in known.items():
        if entry in named and model_type not in mapping:
            reason = f"transformers has no class of its own for model_type {model_type!r}"
            return NeededCode("config.json", f"names {AUTO_MAP}.{entry}: {named[entry]}", reason)
    return None


def code_of_tokenizer(tokenizer_config: Mapping[str, Any], config: Mapping[str, Any]) -> NeededCode | None:
    """Return the code that the tokenizer needs, None if it needs none; `config` is the model's config.json."""
    named = _auto_map(tokenizer_config).get("AutoTokenizer")
    if not named:
        return None
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    wanted = str(tokenizer_config.get("tokenizer_class") or "").removesuffix("Fast")
    if wanted and any(map(tokenizer_class_from_name, (wanted, wanted + "Fast"))):
        return None
    if not wanted and config.get("model_type") in TOKENIZER_MAPPING_NAMES:
        return None
    reason = f"transformers has no tokenizer {wanted!r} of its own" if wanted else "it names no class of transformers"
    return NeededCode(TOKENIZER_CONFIG, f"names {AUTO_MAP}.AutoTokenizer: {named}", reason)


def code_of_generation(folder: Path) -> NeededCode | None:
    """Return the code by which a model folder replaces `generate`, None if it does not."""
    if not (folder / CUSTOM_GENERATE).is_file():
        return None
    return NeededCode(CUSTOM_GENERATE, "replaces `generate`", "the folder is loaded with it or not at all")


def code_of_checkpoint(folder: Path, config: Mapping[str, Any]) -> NeededCode | None:
    """Return the first code that a folder needs as a model with its tokenizer, None if it needs none.

    `config` is its config.json, or what stands in for it. Raises ConfigError for a file that cannot be read.
    """
    tokenizer = folder / TOKENIZER_CONFIG
    code = code_of_generation(folder) or code_of_model(config)
    if code is None and tokenizer.is_file():
        code = code_of_tokenizer(read_json_object(tokenizer), config)
    return code


def _auto_map(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the classes that a config names; a list, as older tokenizers have it, is of the tokenizer."""
    named = config.get(AUTO_MAP)
    if isinstance(named, list | tuple):
        return {"AutoTokenizer": list(named)}
    return named if isinstance(named, Mapping) else {}
