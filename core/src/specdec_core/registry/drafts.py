"""Trained drafts that distributions bring (group `specdec.drafts.v1`): where one is and what it is for; imports none.

The entry point's value names a package; its folder holds config.json and weights, as any checkpoint does, and beside
them a card, `draft.json`, which names the target that they were trained for (docs/drafts.md).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from specdec_core.errors import ConfigError, MetadataStageError
from specdec_core.registry.catalog import Catalog, Record, parse_value
from specdec_core.registry.homes import homes
from specdec_core.registry.importing import check_metadata

CARD: Final = "draft.json"
WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth")
K: Final = "num_speculative_tokens"
_TEXTS: Final = ("target", "method", "about")
_REINSTALL: Final = "Reinstall the distribution, or tell its authors."


@dataclass(frozen=True)
class DraftCard:
    """What a draft declares in `draft.json`.

    target   the model that it was trained for, by the name under which people know it
    method   the method that runs it
    num_speculative_tokens  k where the user names none, None if the draft has no opinion
    about    a sentence about it, "" for none
    """

    target: str
    method: str
    num_speculative_tokens: int | None = None
    about: str = ""


@dataclass(frozen=True)
class Meant:
    """What a text under `model` is: a path or hub id, and how it was found; `note` is empty where there is no doubt.

    draft  the record of the draft of that name, None where a path or hub id is meant
    """

    model: str
    note: str = ""
    draft: Record | None = None


def meant(catalog: Catalog, model: str) -> Meant:
    """Return what `model` stands for: a local path, else an installed draft of that name, else a hub id.

    `distribution:name` settles a name that two distributions claim. Raises ConflictError for such a name by itself,
    UnknownNameError for a published draft that is not installed, MetadataStageError for one without its files.
    """
    bare = model.rpartition(":")[2]
    known = catalog.knows("draft", bare)
    if Path(model).expanduser().exists():
        owners = sorted({r.distribution for r in catalog.of_kind("draft") if r.name == bare})
        note = f"a local path comes before the draft of that name in {' and '.join(owners)}" if owners else ""
        return Meant(model, note)
    if not known and bare not in homes("draft"):
        return Meant(model)
    record = catalog.find("draft", model)
    return Meant(str(folder_of(record)), f"the draft {record.name!r} of {record.distribution} {record.version}", record)


def folder_of(record: Record) -> Path:
    """Return the folder of a draft, which has a config.json, a card and weights; nothing is imported.

    Raises MetadataStageError for a value that names no package, or a package without these files.
    """
    check_metadata(record)
    folder = _package_folder(record)
    lacking = [name for name in ("config.json", CARD) if not (folder / name).is_file()]
    if not any(file.suffix in WEIGHTS for file in folder.iterdir()):
        lacking.append(f"weights ({', '.join(WEIGHTS)})")
    if lacking:
        raise MetadataStageError(record, f"its folder {folder} has no {' and no '.join(lacking)}", _REINSTALL)
    return folder


def read_card(folder: Path) -> DraftCard | None:
    """Return the card in a checkpoint's folder, None if it has none; raises ConfigError for one that cannot be used."""
    file = folder / CARD
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read: {error}"
        raise ConfigError(message) from error
    problem = _card_problem(data)
    if problem:
        message = f"{file} {problem}"
        raise ConfigError(message)
    return DraftCard(data["target"], data["method"], data.get(K), data.get("about", ""))


def look_at(record: Record) -> tuple[Path, DraftCard]:
    """Return folder and card of a draft, also of one whose name another distribution claims as well.

    Raises MetadataStageError.
    """
    alone = replace(record, status="ok", reason="") if record.status == "conflict" else record
    folder = folder_of(alone)
    try:
        card = read_card(folder)
    except ConfigError as error:
        raise MetadataStageError(alone, str(error), "Tell the authors of the distribution.") from error
    assert card is not None  # folder_of has looked
    return folder, card


def described(record: Record) -> dict[str, Any]:
    """Return what a listing tells of a draft, as plain data: its card, or under `problem` what is wrong with it."""
    try:
        return asdict(look_at(record)[1])
    except MetadataStageError as error:
        return {"problem": error.problem}


def _package_folder(record: Record) -> Path:
    module, _ = parse_value(record.value) or ("", "")  # the catalog refuses what names an attribute
    top, *inside = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    for place in (spec and spec.submodule_search_locations) or ():
        if (folder := Path(place, *inside)).is_dir():
            return folder
    raise MetadataStageError(record, f"there is no package {module!r}", _REINSTALL)


def _card_problem(data: Any) -> str:
    """Return what is wrong with a card, "" for nothing."""
    if not isinstance(data, Mapping):
        return f"holds {type(data).__name__}, expected an object"
    unknown = sorted(set(data) - {*_TEXTS, K})
    if unknown:
        return f"has unknown keys {unknown}; there are {', '.join((*_TEXTS, K))}"
    wrong = [key for key in _TEXTS if not isinstance(data.get(key, ""), str)]
    wrong += [key for key in _TEXTS[:2] if not data.get(key)]
    k = data.get(K)
    if k is not None and not (type(k) is int and k >= 1):
        wrong.append(K)
    return f"has no usable {', '.join(dict.fromkeys(wrong))}" if wrong else ""
