"""Makes vLLM take the method `specdec`: the class that it reads speculative configurations with is replaced by ours."""

from __future__ import annotations

from typing import Final

from specdec_vllm import patching

READER: Final = ("vllm.engine.arg_utils", "SpeculativeConfig")
FIELDS: Final = ("num_speculative_tokens", "method", "model", "target_model_config", "target_parallel_config")


def accept() -> str | None:
    """Replace the class where engine arguments are read; raises Mismatch with nothing changed."""
    original = patching.find(*READER)
    if patching.is_ours(original):
        return None
    patching.find("vllm.config.speculative", "SpeculativeMethod")
    patching.find("vllm.config.utils", "config")
    missing = [name for name in FIELDS if name not in getattr(original, "__dataclass_fields__", {})]
    if missing:
        message = f"{'.'.join(READER)} has no {', '.join(missing)}"
        raise patching.Mismatch(message)
    from specdec_vllm.speculative import SpeculativeConfig

    patching.replace(*READER, SpeculativeConfig)
    return "the method specdec"
