"""From the name of a quantisation method to transformers' configuration of it; knows no checkpoint."""

from __future__ import annotations

from typing import Any, Final

from specdec_core.errors import ConfigError

# vLLM's names where transformers has one for each width of numbers.
SPELLINGS: Final = {"bitsandbytes": "bitsandbytes_4bit"}
WIDTHS: Final = {"bitsandbytes_4bit": {"load_in_4bit": True}, "bitsandbytes_8bit": {"load_in_8bit": True}}


AS_IT_IS: Final = "install what it needs, or give a checkpoint that is quantised already and leave quantization out"


def quantization_config(name: str) -> Any:
    """Return a configuration with which transformers quantises plain weights.

    Raises ConfigError for a name that transformers does not know, and for one whose package is not installed.
    """
    from transformers.quantizers import AutoHfQuantizer
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as KNOWN

    spelled = SPELLINGS.get(name, name)
    if spelled not in KNOWN:
        known = ", ".join(sorted({*SPELLINGS, *KNOWN}))
        message = f"{name!r} is not known to transformers; known are {known}"
        raise ConfigError(message)
    try:
        chosen = KNOWN[spelled](**WIDTHS.get(spelled, {}))
        _check_packages(AutoHfQuantizer.from_config(chosen, pre_quantized=False))
        return chosen
    except (ImportError, TypeError, ValueError) as error:
        cause = str(error).strip().partition("\n")[0]
        message = f"{name!r} cannot be used: {type(error).__name__}: {cause}"
        raise ConfigError(message) from error


def _check_packages(quantizer: Any) -> None:
    """Raise ImportError for a package that is not there; what a device lacks is said where weights are loaded."""
    try:
        quantizer.validate_environment(device_map=None, weights_only=True)
    except (RuntimeError, ValueError):
        return
