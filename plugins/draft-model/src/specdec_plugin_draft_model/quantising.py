"""From the name of a quantisation method to transformers' configuration of it; knows no checkpoint."""

from __future__ import annotations

from typing import Any, Final

from specdec.errors import ConfigError

# vLLM's names where transformers has one for each width of numbers.
SPELLINGS: Final = {"bitsandbytes": "bitsandbytes_4bit"}
WIDTHS: Final = {"bitsandbytes_4bit": {"load_in_4bit": True}, "bitsandbytes_8bit": {"load_in_8bit": True}}


def quantization_config(name: str) -> Any:
    """Return a configuration with which transformers quantises plain weights; raises ConfigError naming what lacks."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as KNOWN

    spelled = SPELLINGS.get(name, name)
    if spelled not in KNOWN:
        known = ", ".join(sorted({*SPELLINGS, *KNOWN}))
        message = f"quantization {name!r} is not known to transformers; known are {known}"
        raise ConfigError(message)
    try:
        return KNOWN[spelled](**WIDTHS.get(spelled, {}))
    except (ImportError, TypeError, ValueError) as error:
        cause = str(error).strip().partition("\n")[0]
        message = (
            f"quantization {name!r} cannot be used ({type(error).__name__}: {cause}); install what it needs, or give a "
            "checkpoint that is quantised already and leave quantization out"
        )
        raise ConfigError(message) from error
