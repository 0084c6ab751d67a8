"""Turns the config.json of a model into that of its MTP modules, as a patch; what is given is never changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from specdec_core.errors import ConfigError
from specdec_plugin_mtp import speculators
from specdec_plugin_mtp.families import FAMILIES, WRAPPERS
from specdec_plugin_mtp.family import Config, Family, architectures, is_count

TEXT_CONFIG = "text_config"


def family_of(config: Config) -> Family | None:
    """Return the family of a config.json as it is in the checkpoint, None if it is of none."""
    inner = unwrapped(config)
    return next((family for family in FAMILIES if family.matches(inner)), None)


def keys_for_loading(hf_config: Config) -> Config | None:
    """Return the keys of a target that is made like one of a known type, None for other targets."""
    family = family_of(hf_config)
    return None if family is None else family.loads_as or None


def view_of(family: Family, config: Config) -> Config:
    """Return the config that the family's keys are read from: text_config promoted where the family asks for it."""
    inner = unwrapped(config)
    return promoted(inner) if family.promotes else inner


def patch_of(hf_config: Config) -> Config | None:
    """Return the keys that change, None if none does.

    A key that is not to be seen any longer becomes None. Raises ConfigError for a family's config that lacks what the
    family must say.
    """
    new = converted(hf_config)
    patch = {key: value for key, value in new.items() if key not in hf_config or hf_config[key] != value}
    return patch or None


def converted(config: Config) -> dict[str, Any]:
    """Return a converted copy."""
    family = family_of(config)
    if family is None:
        return dict(copy.deepcopy(dict(unwrapped(config))))
    view = view_of(family, config)
    new = copy.deepcopy(dict(view))
    modules, _ = family.count(view)
    if family.required and not is_count(modules):
        message = f"config.json of {family.title} must have {' or '.join(family.counts)}, at least 1; got {modules!r}"
        raise ConfigError(message)
    if family.becomes is not None:
        new["model_type"] = family.becomes
    if family.counts or family.default is not None:
        new["n_predict"] = modules
    if family.architecture is not None:
        new["architectures"] = [family.architecture]
    new.update(copy.deepcopy(dict(family.sets)))
    if family.also is not None:
        new.update(family.also(view, modules))
    return new


def unwrapped(config: Config) -> Config:
    """Return the language model's config of a file that only wraps it, or that of a layer in speculators' format."""
    if speculators.is_speculators(config):
        return speculators.flattened(config)
    names = architectures(config)
    return promoted(config) if names and names[0] in WRAPPERS else config


def promoted(config: Config) -> Config:
    """Return a config with text_config in its place; what text_config lacks, quantization_config say, is kept."""
    text = config.get(TEXT_CONFIG)
    if not isinstance(text, Mapping):
        return config
    said = {key: value for key, value in text.items() if value is not None or key not in config}
    return {**config, **said, TEXT_CONFIG: None}
