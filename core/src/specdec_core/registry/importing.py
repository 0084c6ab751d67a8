"""Imports what a record points to, and takes back what a failed import left behind; knows nothing of hooks."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from specdec_core.errors import ImportStageError, MetadataStageError, VersionStageError
from specdec_core.registry.catalog import LOCAL_DISTRIBUTION, Record, parse_value
from specdec_core.registry.installed import normalize, required_by
from specdec_core.registry.majors import next_step

CORE_PACKAGE = "specdec_core"  # never taken back: classes of ours must stay the classes they are


def check_metadata(record: Record) -> None:
    """Raise MetadataStageError or VersionStageError if the record's own data show that it cannot be used."""
    if record.status in ("needs newer core", "needs newer plugin", "core mismatch"):
        raise VersionStageError(record, record.reason, next_step(record))
    if record.status == "conflict":
        step = f"Say {record.distribution}:{record.name} to mean this one."
        raise MetadataStageError(record, record.reason, step)
    if record.status == "invalid" or (record.distribution != LOCAL_DISTRIBUTION and parse_value(record.value) is None):
        reason = record.reason or f"its value {record.value!r} is no 'module:attribute'"
        raise MetadataStageError(record, reason, "Reinstall the distribution, or tell its authors.")


def import_object(record: Record) -> Any:
    """Return the object that the record points to.

    Raises MetadataStageError, VersionStageError, or ImportStageError with the cause chained (SystemExit included).
    """
    check_metadata(record)
    with undo_imports(record):
        try:
            return _fetch(record)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ImportStageError(record, explain(error), _import_step(record, error)) from error


def explain(error: BaseException) -> str:
    """Return type and text of an error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def missing_library(record: Record, error: BaseException | None) -> str:
    """Return the top-level name of the module whose absence made the import fail, "" if it is the record's own."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    parsed = parse_value(record.value)
    own = parsed[0].partition(".")[0] if parsed else ""
    missing = error.name.partition(".")[0]
    return "" if missing == own else missing


@contextlib.contextmanager
def undo_imports(record: Record) -> Iterator[None]:
    """Take the modules of the record's package out of `sys.modules` again if the block fails, as if never imported."""
    top = _top_package(record)
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in [name for name in sys.modules if name not in before] if top else ():
            if name == top or name.startswith(f"{top}."):
                _forget(name)
        raise


def _top_package(record: Record) -> str:
    """Return the name of the package whose modules belong to the record, "" if there is none to take back."""
    if record.local is not None and not isinstance(record.local, str):
        return ""
    parsed = parse_value(record.value)
    top = parsed[0].partition(".")[0] if parsed else ""
    return "" if top == CORE_PACKAGE else top


def _forget(name: str) -> None:
    module = sys.modules.pop(name, None)
    parent, _, child = name.rpartition(".")
    holder = sys.modules.get(parent)
    if holder is not None and module is not None and vars(holder).get(child) is module:
        delattr(holder, child)


def _fetch(record: Record) -> Any:
    local = record.local
    if local is None:
        return _attribute(*_split(record.value))
    if isinstance(local, PathLike):
        return _from_file(os.fspath(local))
    if not isinstance(local, str):
        return local
    path, colon, attribute = local.rpartition(":")
    if colon and path.endswith(".py"):
        return functools.reduce(getattr, attribute.split("."), _from_file(path))
    return _from_file(local) if _looks_like_path(local) else _attribute(*_split(local))


def _looks_like_path(text: str) -> bool:
    return text.endswith(".py") or os.sep in text or "/" in text


def _split(value: str) -> tuple[str, str]:
    parsed = parse_value(value)
    if parsed is None:
        message = f"{value!r} is no 'module:attribute' and no path of a .py file"
        raise ValueError(message)
    return parsed


def _attribute(module: str, attribute: str) -> Any:
    found: Any = importlib.import_module(module)
    return functools.reduce(getattr, attribute.split("."), found) if attribute else found


def _from_file(given: str) -> ModuleType:
    """Import a file under a private name, once a process as long as the file stays the same."""
    path = Path(given).expanduser().resolve()
    if not path.is_file():
        message = f"there is no file {given!r}"
        raise FileNotFoundError(message)
    state = path.stat()
    key = hashlib.blake2b(f"{path}\0{state.st_mtime_ns}\0{state.st_size}".encode(), digest_size=8).hexdigest()
    name = f"_specdec_local_{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"{given!r} is no Python file (.py)"
        raise ImportError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look modules up while they are being imported
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_step(record: Record, error: BaseException) -> str:
    missing = missing_library(record, error)
    if missing:
        if normalize(missing) in required_by(record.distribution):
            return f"Install what it misses, which {record.distribution} requires: pip install {missing}"
        return f"Install the distribution that has the module {missing!r}; its name may be another."
    if record.distribution == LOCAL_DISTRIBUTION:
        return "Fix the file or the name that was given."
    return f"Try `pip install --upgrade {record.distribution}`, or tell its authors."
