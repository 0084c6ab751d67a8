"""Settles keys that are neither common nor options of what was selected: no effect, foreign, refused or unknown."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel

from specdec_core.config.foreign_keys import FOREIGN
from specdec_core.config.key_table import KEYS
from specdec_core.config.keys import Key, NoEffect, Option, Refused, is_one_of
from specdec_core.config.options import keys_of, nearest
from specdec_core.config.resolution import Resolution
from specdec_core.config.speculative import COMMON_KEYS
from specdec_core.errors import ConfigWarning, PluginWarning
from specdec_core.registry.asking import ask
from specdec_core.registry.catalog import LOCAL_DISTRIBUTION
from specdec_core.registry.groups import Kind
from specdec_core.registry.loaded import LoadedPlugin
from specdec_core.registry.loader import Registry

WORDS: Final[dict[Kind, str]] = {"proposer": "method", "verifier": "verifier"}
ANYWAY: Final = "already the default"


def decide_other_keys(
    resolution: Resolution,
    method: LoadedPlugin,
    verifier: LoadedPlugin | None,
    models: Iterable[type[BaseModel]],
) -> dict[str, Any]:
    """Settle every key that no model in `models` reads; return the keys that the host acts on, with their values."""
    own = {key for model in models for key in keys_of(model)}
    host_keys: dict[str, Any] = {}
    foreign: dict[str, Any] = {}
    for key, value in copy.deepcopy(resolution.config.other_keys).items():
        if key in resolution.host_keys and value is not None:
            host_keys[key] = value
            resolution.decide(key, value, "given; the host acts on it")
        elif key not in own and key in FOREIGN:
            _unknown(resolution, key, own, method, verifier)
        elif key not in own and not _decided_by_table(resolution, key, value, KEYS.get(key)):
            foreign[key] = value
    owners = _owners(resolution.registry) if foreign else {}
    for key in foreign:
        kind, owner = owners.get(key) or _usual_owner(KEYS.get(key))
        if owner:
            selected = f"the verifier {verifier.name}" if kind == "verifier" and verifier else method.name
            resolution.warn(f"{key} is an option of {owner}, not of {selected}: it is ignored", ConfigWarning)
            resolution.decide(key, None, f"ignored: an option of {owner}")
        else:
            _unknown(resolution, key, own, method, verifier)
    return host_keys


def _decided_by_table(resolution: Resolution, key: str, value: Any, known: Key | None) -> bool:
    """Settle a key that needs no look at other plugins; False if it may be another plugin's, or is not known."""
    if known is None:
        return False
    if value is None:
        resolution.decide(key, None, "null: treated as unset")
    elif isinstance(known, NoEffect):
        _ignore_without_effect(resolution, key, value, known)
    elif isinstance(known, Option | Refused) and is_one_of(value, known.harmless):
        resolution.decide(key, value, ANYWAY)
    elif isinstance(known, Refused):
        resolution.problem(key, known.reason, known.step)
    else:
        return False
    return True


def _ignore_without_effect(resolution: Resolution, key: str, value: Any, known: NoEffect) -> None:
    if not known.values.fit(value):
        resolution.problem(key, f"expected {known.values.words.replace('`', '')}, got {value!r}")
        return
    given = resolution.config.as_json()
    against = [f"{other} {no!r}" for other, no in known.excludes.items() if is_one_of(given.get(other), (no,))]
    if value and against:
        resolution.problem(key, f"{value!r} cannot be combined with {' and '.join(against)}", f"leave {key} out")
    else:
        resolution.decide(key, value, f"no effect: {known.reason}")


def _usual_owner(known: Key | None) -> tuple[str, str]:
    """Return kind and words for the plugins that have a key, "" if it is not known to be anybody's."""
    return (known.kind, known.of) if isinstance(known, Option) else ("", "")


def _unknown(
    resolution: Resolution, key: str, own: set[str], method: LoadedPlugin, verifier: LoadedPlugin | None
) -> None:
    if key in FOREIGN:
        resolution.problem(key, *FOREIGN[key].said())
        return
    close = nearest(key, (*COMMON_KEYS, *own))
    with_verifier = f" with the verifier {verifier.name}" if verifier else ""
    listed = f"{method.name}{with_verifier} takes {', '.join(sorted(own)) or 'no keys of its own'}"
    resolution.problem(key, "unknown key", f"did you mean {close}? {listed}" if close else listed)


def _owners(registry: Registry) -> dict[str, tuple[str, str]]:
    """Return (kind, owner) of each key of all other installed methods and verifiers; failures become warnings."""
    records = [record for kind in WORDS for record in registry.catalog.of_kind(kind)]
    owners: dict[str, tuple[str, str]] = {}
    for answer in ask("options", records, registry):
        record = answer.record
        if answer.problem and (answer.loaded or record.distribution != LOCAL_DISTRIBUTION):
            warnings.warn(answer.problem, PluginWarning, stacklevel=6)
        for key in answer.said or ():
            owners.setdefault(key, (record.kind, f"the {WORDS[record.kind]} {record.name}"))
    return owners
