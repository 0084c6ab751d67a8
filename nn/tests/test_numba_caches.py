"""Compiled kernels in the cache are always those of the sources at hand; no state of a file or folder breaks a run."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numba
import pytest
from numba.core import config

from specdec_nn.ops.cpu import jit

pytestmark = pytest.mark.slow

ATTEND = """
import torch, numpy as np
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference
from specdec_nn.ops.attention.numba import attention
from specdec_nn.cache.arena import KVArena, Segment
torch.manual_seed(0)
rows, segment, arena = 200, Segment(), KVArena(400, torch.device("cpu"))
arena.reserve(segment, rows)
def step():
    one = np.zeros(1, np.int32)
    return AttentionStep(arena.slots(segment, 0, rows), one, one + rows, one, one > 0,
                         np.array([segment.pages], np.int32), arena.page_size)
q, k, v = (torch.randn(rows, h, 64) for h in (8, 2, 2))
pages = arena.layer(0, k, v)
for _ in range(20):
    mine = attention(q, k, v, *pages, step(), scaling=0.125)
torch.testing.assert_close(mine, attention_reference(q, k, v, *pages, step(), scaling=0.125))
"""


KERNEL = """
from numba import int64
from specdec_nn.ops.cpu.jit import Jit
from toy.constants import FACTOR
njit = Jit("toy").njit

@njit(int64(int64), nogil=True)
def times(x):
    return FACTOR * x
"""
CHILD = """
import resource, sys
if sys.argv[1] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from toy.kernel import times
print(times(7), sum(times.stats.cache_hits.values()))
"""


CALLERS = """
from specdec_nn.ops.cpu import jit
jit.CORE.stamp = None  # no cache, since code from one has no text to be read
from specdec_nn.fused import kernel
from specdec_nn.ops.linear import numba as linear
from specdec_nn.ops.attention import numba as attention
def text(made):
    return made._library.get_llvm_str()
tile, task = "llvm.prefetch", "take_branches"
assert tile in text(linear.panel()) and task in text(attention.task())
for caller in (linear._compiled(), kernel.worker()):
    assert tile not in text(caller) and task not in text(caller)
"""


def test_the_products_of_linear_and_attention_are_compiled_once_and_not_again_in_the_fused_pass() -> None:
    child = subprocess.run([sys.executable, "-c", CALLERS], capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Return a function that imports a package of one kernel anew, as a new process would."""
    folder = tmp_path / "site" / "toy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "kernel.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(jit, "_said", set())
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(factor: int = 3) -> ModuleType:
        file = folder / "constants.py"
        if not file.exists() or file.read_text() != f"FACTOR = {factor}":
            file.write_text(f"FACTOR = {factor}")
            os.utime(file, (1e9, 1e9))  # as wheels have it, and of the same size
        for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return importlib.import_module("toy.kernel")

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]


def hits(module: ModuleType) -> int:
    return sum(module.times.stats.cache_hits.values())


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbk"))


def test_a_second_process_finds_what_the_first_compiled(toy: Any, tmp_path: Path) -> None:
    assert (toy().times(7), hits(toy())) == (21, 1)
    assert len(files(tmp_path)) == 1 and files(tmp_path)[0].parent == tmp_path / "site" / "toy" / "__pycache__"


def test_a_constant_of_another_file_of_the_same_size_and_age_is_never_stale(toy: Any, tmp_path: Path) -> None:
    toy(3)
    changed = toy(5)
    assert (changed.times(7), hits(changed)) == (35, 0)
    assert len(files(tmp_path)) == 1, "what no source fits any more is removed from the package's own folder"
    assert (toy(5).times(7), hits(toy(5))) == (35, 1)


def with_checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest() + data


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(range(256)) * 9,
    "zeros at the end": lambda data: data[:-512] + bytes(512),
    "no pickle": lambda data: with_checksum(b"no pickle"),
    "another pickle": lambda data: with_checksum(pickle.dumps((1, 2))),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_compiled_anew_and_told_once(
    toy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    toy()
    file = files(tmp_path)[0]
    for _ in range(2):
        file.write_bytes(DAMAGE[kind](file.read_bytes()))
        assert toy().times(7) == 21
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(file) in caplog.text and "compiled anew" in caplog.text
    assert hits(toy()) == 1, "the file is whole again"


def test_code_of_another_cpu_compiler_or_interpreter_lies_in_another_file(
    toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, host = toy().times._cache, ("x86_64", "this", "+avx")

    def name(*cpu: str) -> str | None:
        found: str | None = cache._file_name((numba.int64,), SimpleNamespace(magic_tuple=lambda: cpu))
        return found

    names = {name(*host), name("x86_64", "other", "+avx"), name("x86_64", "this", "+avx2"), name("arm", "this", "+avx")}
    for module, attribute in ((numba, "__version__"), (jit.llvmlite, "__version__"), (sys, "version"), (jit, "CHOSEN")):
        with monkeypatch.context() as patch:
            patch.setattr(module, attribute, "9.9")
            names.add(name(*host))
    monkeypatch.setattr(config, "BOUNDSCHECK", 1)
    assert len({*names, name(*host)}) == 9


def test_a_folder_of_the_user_is_made_and_used(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "mine" / "deep"))
    assert (toy().times(7), hits(toy())) == (21, 1)
    assert [file.is_relative_to(tmp_path / "mine" / "deep") for file in files(tmp_path)] == [True]


def test_a_folder_of_the_user_that_is_none_is_told_once_and_the_next_one_serves(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file"))
    assert (toy(3).times(7), toy(5).times(7), hits(toy(5))) == (21, 35, 1)
    assert len(caplog.records) == 1 and "NUMBA_CACHE_DIR" in caplog.text


def child(arguments: str, path: Path, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, arguments],
        env={**inherited, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out.strip(), errors


def test_two_processes_compile_at_one_time_and_leave_whole_files(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "site" / "toy" / "constants.py").write_text("FACTOR = 3")
    both = [child("", tmp_path / "site") for _ in range(2)]
    assert [result(process)[0].split()[0] for process in both] == ["21", "21"]
    assert hits(toy()) == 1 and len(files(tmp_path)) == 1
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of file sizes stands for a full disk")
def test_a_full_disk_reads_what_is_there_and_compiles_the_rest(toy: Any, tmp_path: Path) -> None:
    toy()
    assert result(child("full", tmp_path / "site")) == ("21 1", "")
    files(tmp_path)[0].unlink()
    out, errors = result(child("full", tmp_path / "site"))
    assert out == "21 0" and errors.count("\n") == 1 and "set NUMBA_CACHE_DIR" in errors
    assert not files(tmp_path) and not list(tmp_path.rglob("*.part"))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder that nobody can write to")
def test_a_package_in_a_zip_runs_with_a_home_and_without(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "site" / "toy" / "constants.py").write_text("FACTOR = 3")
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in (tmp_path / "site" / "toy").glob("*.py"):
            packed.write(file, f"toy/{file.name}")
    homeless = {"HOME": "/proc/nobody"}
    out, errors = result(child("", archive, **homeless))
    assert out == "21 0" and "no folder takes compiled code" in errors
    home = {"HOME": str(tmp_path / "home")}
    assert [result(child("", archive, **home)) for _ in range(2)] == [("21 0", ""), ("21 1", "")]


def test_sources_that_cannot_be_read_turn_the_cache_off(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jit, "source_hash", lambda modules: None)
    assert (toy().times(7), hits(toy())) == (21, 0)
    assert not files(tmp_path) and len(caplog.records) == 1


def test_kernels_cached_under_one_thread_run_under_two(tmp_path: Path) -> None:
    for threads in ("1", "2"):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": threads}
        environment["MALLOC_PERTURB_"] = "85"
        subprocess.run([sys.executable, "-c", ATTEND], env=environment, check=True, timeout=300)
