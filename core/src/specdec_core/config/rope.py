"""The rotary keys of a config.json: which types can be built, and how those of multimodal models are read; no torch.

Models with three position axes (mrope: time, height, width) give a row of text the same position on all three, which
makes the rotation of text that of plain rotary embeddings: https://arxiv.org/abs/2409.12191, section 2.1.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

SECTIONS: Final = ("rope_scaling", "rope_parameters")
DEFAULT: Final = "default"
MROPE: Final = "mrope"
MROPE_KEYS: Final = ("mrope_section", "mrope_interleaved")
# By type, the keys without which its table cannot be made.
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    DEFAULT: (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
KNOWN: Final = (*TYPES, MROPE)
OF_MODEL_CLASSES: Final = ("proportional", "xdrope")  # read by classes of transformers; no drafter's layer has them


def rope_type(rope: Mapping[str, Any]) -> str:
    """Return the type that a section names, under its new key or its old one."""
    return str(rope.get("rope_type") or rope.get("type") or DEFAULT)


def rope_problem(config: Mapping[str, Any]) -> str | None:
    """Return why no rotary table of a drafter's layers can be made of a config.json, None if one can."""
    for section in SECTIONS:
        rope = config.get(section)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            return f"its config.json has {section} {rope!r}, expected an object with rope_type"
        if any(isinstance(value, Mapping) for value in rope.values()):
            return f"its {section} differ between kinds of layers, which is not built here"
        kind = rope_type(rope)
        if kind not in KNOWN:
            return _unknown(section, kind)
        missing = [key for key in TYPES.get(kind, ()) if rope.get(key) is None]
        if missing:
            return f"its config.json has {section} of type {kind!r} without {', '.join(missing)}"
    return None


def model_rope_problem(config: Mapping[str, Any], *, built: bool = False) -> str | None:
    """Return which rotary type of a whole model's configuration no class reads, None if all are known.

    Whole models are built by transformers, whose classes have types of their own, and layers that differ. `built` says
    that the configuration is that of a class: one that reads mrope has made it another type.
    """
    for section, rope in _sections(config):
        kind = rope_type(rope)
        if built and kind == MROPE:
            return f"its {section} are of type {kind!r}, which this type of model does not have"
        if kind not in (*KNOWN, *OF_MODEL_CLASSES):
            return _unknown(section, kind)
    return None


def plain_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration whose rotary sections are those of text alone: mrope becomes default.

    Nothing in it is shared with what was given, so that a library's configuration class may change it.
    """
    plain = copy.deepcopy(dict(config))
    for section in SECTIONS:
        rope = plain.get(section)
        if isinstance(rope, Mapping):
            kept = {key: value for key, value in rope.items() if key not in (*MROPE_KEYS, "type", "rope_type")}
            kind = rope_type(rope)
            plain[section] = {**kept, "rope_type": DEFAULT if kind == MROPE else kind}
    return plain


def _unknown(section: str, kind: str) -> str:
    return f"its config.json has {section} of type {kind!r}, which is not known here; known are {', '.join(KNOWN)}"


def _sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rotary sections, one for each kind of layer where they differ."""
    for section in SECTIONS:
        rope = config.get(section)
        if not isinstance(rope, Mapping):
            continue
        nested = [value for value in rope.values() if isinstance(value, Mapping)]
        for part in nested if nested and "rope_type" not in rope and "type" not in rope else [rope]:
            yield section, part
