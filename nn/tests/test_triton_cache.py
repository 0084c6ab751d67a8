"""A folder that Triton cannot write to costs the Triton kernels, with the reason, and no run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels

pytest.importorskip("triton")


def backend_on_a_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    for name in ("specdec_nn.ops.compact.triton",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Kernels(Catalog.discover()).backend("compact", "cuda")


def test_without_a_folder_another_backend_is_taken_and_the_reason_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert backend_on_a_gpu(monkeypatch, tmp_path / "file" / "cache") == "reference"
    assert len(caplog.records) == 1 and "set TRITON_CACHE_DIR" in caplog.text


def test_a_missing_folder_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert backend_on_a_gpu(monkeypatch, tmp_path / "new" / "cache") == "triton"
    assert not list((tmp_path / "new" / "cache").iterdir())
