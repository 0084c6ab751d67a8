"""numba's decorators with a cache of compiled code that is never wrong and never in the way; it knows no kernel.

numba compares a cached function with its own file alone, while kernels are inlined across files and trust each other's
constants; it fails on a damaged file, or where no folder can be written to. Here compiled code lies in one file for
each key, and the key is all that shapes it: the text of every source file that it is made of, the signature, the CPU,
and the versions and settings of the compiler. So nothing stale is ever found, and no file is ever changed. A file is
read only if its checksum is right; all else is compiled anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import pickle
import platform
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from numba.core import caching, config
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

from specdec_nn.ops.cpu.choice import CHOSEN
from specdec_nn.ops.cpu.sources import source_hash

ENDING: Final = ".nbk"
STAMP: Final = 16  # hexadecimal digits of the sources' hash in a file's name
DIGEST: Final = 32  # bytes of SHA-256 at the head of a file
# Settings of numba that shape code, besides those of the CPU, which its codegen names.
SETTINGS: Final = ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "USING_SVML")

logger = logging.getLogger(__name__)
_said: Final[set[str]] = set()  # what was logged in this process


class Jit:
    """`njit` and `cfunc` for kernels that are made of the given packages and modules, all their submodules included."""

    def __init__(self, *modules: str) -> None:
        """Name every module whose text shapes the compiled code; it is read now, before it is imported and runs.

        stamp   hash of the sources; None where they cannot be read, and then nothing is cached
        """
        self.stamp = source_hash(modules)
        if self.stamp is None:
            _once("sources", "the sources of %s cannot be read, so compiled code is not cached", modules[0])

    def njit(self, *signatures: Any, **options: Any) -> Callable[[Any], Any]:
        """Return `numba.njit` with this cache: `@njit(signature, option=...)`, or without a signature.

        numba's own option `cache` is ignored: code is always cached, and here.
        """
        options.pop("cache", None)

        def decorate(function: Any) -> Any:
            made = numba.njit(**options)(function)
            if config.DISABLE_JIT:
                return made
            made._cache = CodeCache(function, self, parallel=bool(options.get("parallel")))
            for signature in signatures:
                made.compile(signature)
            if signatures:
                made.disable_compile()
            return made

        return decorate

    def cfunc(self, signature: Any, function: Any) -> Any:
        """Return `numba.cfunc(signature)(function)` with this cache."""
        from numba.core.ccallback import CFunc
        from numba.core.sigutils import normalize_signature

        made: Any = CFunc(function, normalize_signature(signature), locals={}, options={})
        made._cache = CodeCache(function, self)
        made.compile()
        return made


class CodeCache(caching._Cache):  # type: ignore[misc] # numba has no types
    """numba's interface of a function's cache, over files that are written once."""

    def __init__(self, function: Any, jit: Jit, *, parallel: bool = False) -> None:
        """Keep what the key is made of; nothing is read yet. `parallel`: the function runs on numba's threads."""
        self._function = function
        self._parallel = parallel
        self._jit = jit
        self._enabled = True

    @property
    def cache_path(self) -> str | None:
        """The first folder that is looked in, None if there is none."""
        return str(self._folders[0]) if self._folders else None

    @cached_property
    def _folders(self) -> list[Path]:
        return folders(self._function.__code__.co_filename)

    @cached_property
    def _name(self) -> str:
        full = f"{self._function.__module__.rpartition('.')[2]}.{self._function.__qualname__}"
        return "".join(c if c.isalnum() or c in "._" else "-" for c in full)

    def enable(self) -> None:
        """Use the cache."""
        self._enabled = True

    def disable(self) -> None:
        """Compile always."""
        self._enabled = False

    def flush(self) -> None:
        """Do nothing: what is stale is never found."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of a signature, None if it is not there whole."""
        if self._parallel:
            launch_threads()
        target_context.refresh()
        name = self._file_name(sig, target_context.codegen())
        if name is None:
            return None
        for folder in self._folders:
            payload = _read(folder / name)
            if payload is None:
                continue
            try:
                return CompileResult._rebuild(target_context, *payload)
            except Exception as error:  # whatever an unpickled library may raise; it is compiled anew
                _once("damaged", "%s cannot be used and is compiled anew: %s", folder / name, error)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function in the first folder that takes it."""
        name = self._file_name(sig, data.codegen)
        if name is None or data.library.has_dynamic_globals or any(not part.can_cache for part in data.lifted):
            return
        payload = dumps(data._reduce())
        failures = []
        for folder in self._folders:
            try:
                _write(folder, name, hashlib.sha256(payload).digest() + payload)
            except OSError as error:
                failures.append(f"{folder} ({type(error).__name__}: {error.strerror or error})")
                if config.CACHE_DIR and len(failures) == 1:
                    _once("NUMBA_CACHE_DIR", "NUMBA_CACHE_DIR=%s cannot be written to: %s", config.CACHE_DIR, error)
                continue
            if folder.name == "__pycache__":
                _remove_stale(folder, self._name, name)
            return
        message = "no folder takes compiled code, so every process compiles anew; set NUMBA_CACHE_DIR; tried: %s"
        _once("no folder", message, ", ".join(failures) or "none")

    def _file_name(self, sig: Any, codegen: Any) -> str | None:
        """Return the name that holds all that shapes the code."""
        stamp = self._jit.stamp
        if not self._enabled or stamp is None:
            return None
        cells = tuple(cell.cell_contents for cell in self._function.__closure__ or ())
        settings = [("SPECDEC_CPU", CHOSEN), *((name, getattr(config, name, None)) for name in SETTINGS)]
        versions = (numba.__version__, llvmlite.__version__, np.__version__, sys.version, sys.implementation.cache_tag)
        code = self._function.__code__  # of what was imported, should the file have changed since
        text = (code.co_code, code.co_names, [const for const in code.co_consts if not hasattr(const, "co_code")])
        place = (self._function.__module__, self._function.__qualname__, code.co_firstlineno)
        target = (codegen.magic_tuple(), platform.machine(), versions, settings)
        parts = (stamp, place, text, str(sig), target, dumps(cells))
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"{self._name}-{stamp[:STAMP]}-{key[:32]}{ENDING}"


@functools.cache
def launch_threads() -> None:
    """Start numba's threads, once, and leave torch's number of threads as it is.

    numba's OpenMP layer sets the number of the OpenMP library as it starts, which torch's threads share.
    """
    torch: Any = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    numba.get_num_threads()
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)


def folders(source: str) -> list[Path]:
    """Return where compiled code of a source file may lie, best first: NUMBA_CACHE_DIR, `__pycache__`, the user's.

    All are looked in; the first that can be written to takes what is new. No folder that others may write to is ever
    chosen here, since what lies in it is run.
    """
    file = Path(source)
    label = f"{file.parent.name}_{hashlib.sha256(str(file.parent.absolute()).encode()).hexdigest()[:16]}"
    found = [Path(config.CACHE_DIR) / "specdec" / label] if config.CACHE_DIR else []
    if file.parent.is_dir():  # else the package is in a zip
        found.append(file.parent / "__pycache__")
    with contextlib.suppress(Exception):  # a system without a home
        own = Path(AppDirs(appname="specdec", appauthor=False).user_cache_dir)
        if own.is_absolute():
            found.append(own / "kernels" / label)
    return found


def _read(file: Path) -> Any | None:
    """Return what a file holds, None if it is not there or not as it was written."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
        _once("damaged", "%s is damaged (%d bytes); its kernel is compiled anew", file, len(data))
        return None
    try:
        return pickle.loads(data[DIGEST:])
    except Exception as error:  # names of modules that are no longer there, ...
        _once("damaged", "%s cannot be used and is compiled anew: %s", file, error)
        return None


def _write(folder: Path, name: str, data: bytes) -> None:
    """Put a whole file in place at once, so that nobody sees a part of it."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.{uuid.uuid4().hex[:16]}.part"
    try:
        part.write_bytes(data)
        part.replace(folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _remove_stale(folder: Path, kernel: str, kept: str) -> None:
    """Remove a kernel's files of other sources from a folder that belongs to these sources alone."""
    stamp = kept[len(kernel) : len(kernel) + STAMP + 2]
    with contextlib.suppress(OSError):
        for file in _files(folder, kernel):
            if not file.name[len(kernel) :].startswith(stamp):
                file.unlink(missing_ok=True)


def _files(folder: Path, kernel: str) -> Iterator[Path]:
    return folder.glob(f"{kernel}-*{ENDING}")


def _once(kind: str, message: str, *arguments: object) -> None:
    if kind not in _said:
        _said.add(kind)
        logger.warning(message, *arguments)


CORE: Final = Jit("specdec_nn.ops", "specdec_nn.fused", "specdec_core.noise")
njit, cfunc = CORE.njit, CORE.cfunc
