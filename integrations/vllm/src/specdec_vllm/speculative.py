"""vLLM's speculative configuration with one more method, `specdec`; imports vLLM.

Configurations travel to other processes and are unpickled there before any plugin has run: so this class is found by
its module's name, and needs nothing patched. Annotations are read when the class is made, so they are not postponed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from vllm.config.speculative import SpeculativeConfig as VllmSpeculativeConfig
from vllm.config.speculative import SpeculativeMethod
from vllm.config.utils import config

from specdec_core.config.fingerprint import fingerprint
from specdec_core.errors import ConfigError
from specdec_vllm import routing, settings
from specdec_vllm.settings import KEY

# What vLLM fills in, and what is read here under its own name; all else that a user sets is an option for us.
OWN = ("method", "model", "num_speculative_tokens", KEY)
INTERNAL = ("target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config")


@config
class SpeculativeConfig(VllmSpeculativeConfig):  # type: ignore[misc]  # vLLM need not be there for type checks
    """Configuration for speculative decoding."""

    method: Literal[SpeculativeMethod, "specdec"] | None = None  # type: ignore[valid-type]  # a Literal where vLLM is
    """The name of the speculative method to use; `specdec` means the installed method, or draft, that `model` names."""
    specdec: dict[str, Any] | None = None
    """Options of the method that `model` names, and where its checkpoint is, if it has one: `{"model": "..."}`."""

    def __post_init__(self) -> None:
        """Rewrite the method `specdec` into what vLLM runs; raises ConfigError for what cannot be used."""
        if self.method == KEY:
            routing.rewrite(self, self._take(), self._refused)
        elif self.specdec is not None:
            message = f'"{KEY}" holds options for "method": "{KEY}", and method is {self.method!r}'
            raise ConfigError(message)
        super().__post_init__()

    def compute_hash(self) -> str:
        """Tell compiled targets apart that record other states for a drafter of ours."""
        base: str = super().compute_hash()
        return base if self.specdec is None else f"{base}-{fingerprint(self.specdec)}"

    def _refused(self, keys: Mapping[str, Any]) -> str | None:
        """Return why vLLM does not take keys as those of its own methods, None if it does."""
        target = {name: getattr(self, name) for name in INTERNAL[:2]}
        try:
            VllmSpeculativeConfig(**target, **keys)
        except Exception as error:
            return f"vLLM refuses it ({error})"
        return None

    def _take(self) -> dict[str, Any]:
        """Return what the user set, as a configuration of ours, and take it out of vLLM's own keys."""
        taken: dict[str, Any] = {}
        for field in dataclasses.fields(VllmSpeculativeConfig):
            default = getattr(field.default, "default", field.default)
            if field.name not in OWN + INTERNAL and getattr(self, field.name) != default:
                taken[field.name] = getattr(self, field.name)
                setattr(self, field.name, default)
        options = dict(self.specdec or {})
        named = {} if self.model is None else settings.named(self.model)
        twice = sorted((taken.keys() | named.keys() - {"method"}) & options.keys())
        if twice:
            message = f'{", ".join(twice)}: given twice, beside "{KEY}" and inside it'
            raise ConfigError(message)
        if "method" in named and "method" in options:
            message = f'the method is named twice: "model": "{self.model}", and "{KEY}": {{"method": ...}}'
            raise ConfigError(message)
        return {**named, **taken, **options}
