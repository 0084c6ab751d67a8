"""The script that is run on a GPU, by its dry run: every part does its work, and none takes the others along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SCRIPT = FOLDER / "gpu_check.py"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return pytest.importorskip("gpu_check")


@pytest.mark.slow
def test_a_dry_run_does_every_part_and_finds_nothing_wrong(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out = tmp_path / "gpu.json"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "SPECDEC_KERNELS")
    }
    command = [sys.executable, str(SCRIPT), "--dry-run", "--out", str(out)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    parts = json.loads(out.read_text())["parts"]
    assert list(parts) == ["verification", "attention", "others", "identity", "decoding", "heads"]
    attention = parts["attention"]["rows"]
    assert len(attention) == 15
    assert all(row["op"].startswith("attention.") and row.get("bytes", 1) > 0 for row in attention)
    equal = [row["equal"] for part in parts.values() for row in part["rows"] if "equal" in row]
    assert len(equal) > 15
    assert all(equal)
    rows = parts["decoding"]["rows"]
    assert {"plain", "right drafts", "a tree of 6 nodes"} <= {row["case"].split(",")[0] for row in rows}
    assert all(row["tokens_per_second"] > 0 for row in rows)
    right = [row["acceptance_length"] for row in rows if row["case"].startswith("right drafts")]
    assert min(right) > 2, "drafts that are the plain text are accepted"
    assert all(row["failures"] == 0 for row in parts["heads"]["rows"])


def test_an_error_of_a_part_is_its_last_row(gpu_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sizes: Any, device: Any) -> Any:
        yield {"case": "what was found before", "equal": True}
        raise RuntimeError("a fault of the device")

    monkeypatch.setattr(gpu_check, "part_of", lambda name: broken)
    first, last = gpu_check.rows_of("others", dry=True)
    assert first["equal"]
    assert last["error"] == "RuntimeError: a fault of the device"
    assert "broken" in last["traceback"]


@pytest.mark.parametrize(
    ("code", "error"),
    [("import time; time.sleep(600)", "ended at its limit of 10 s"), ("import os; os._exit(9)", "ended with status 9")],
)
def test_a_part_that_hangs_or_dies_leaves_what_it_had_found(
    code: str, error: str, gpu_check: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "part.py"
    script.write_text(f"print({gpu_check.MARK!r} + '{{\"case\": \"found\"}}', flush=True); print('a word'); {code}")
    monkeypatch.setattr(gpu_check, "__file__", str(script))
    rows = gpu_check.in_process("others", dry=True, limit=10)
    assert rows[0] == {"case": "found"}
    assert error in rows[1]["error"]
