"""Every installed Triton kernel compiles for the GPUs that matter, and fits there; none of them has to be here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_testing.ptx import SHARED_LIMITS

pytest.importorskip("triton")
PARTS = 2  # processes that share the work


def compiled(folder: Path, *arguments: str, parts: int = PARTS) -> list[dict[str, Any]]:
    """Compile cases in fresh processes without the interpreter; return what `specdec_testing.ptx` prints."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "specdec_testing.ptx", *arguments]
    runs = [
        subprocess.Popen(
            [*command, "--part", f"{part}/{parts}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=folder,
        )
        for part in range(parts)
    ]
    lines: list[dict[str, Any]] = []
    for run in runs:
        out, errors = run.communicate()
        if run.returncode and "Cannot find ptxas" in errors:
            pytest.skip("this Triton comes without an assembler for CUDA")
        assert run.returncode == 0, errors[-3000:]
        lines += [json.loads(line) for line in out.splitlines()]
    return lines


@pytest.mark.slow
def test_all_kernels_compile_for_every_architecture_and_fit_into_its_shared_memory(tmp_path: Path) -> None:
    found = compiled(tmp_path)
    for module in ("specdec_nn.ops.race.triton", "specdec_plugin_verifiers.kernels.triton"):
        assert {line["capability"] for line in found if line["module"] == module} == set(SHARED_LIMITS)
    wrong = [line for line in found if not line["entry"] or line["shared"] > SHARED_LIMITS[line["capability"]]]
    assert not wrong, wrong
    slowest = sorted(found, key=lambda line: -float(line["seconds"]))[:5]
    print(len(found), "compilations;", "; ".join(f"{s['case']} sm_{s['capability']} {s['seconds']} s" for s in slowest))


MODULE = """
import triton
import triton.language as tl
from specdec_nn.ops.ptx import PtxCase

@triton.jit
def _helper(x):
    return x * 2

@triton.jit
def first(out, n, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), _helper(n))

@triton.jit
def second(out, n):
    tl.store(out, n)

def ptx_cases():
    cases = [PtxCase(first, {"*i32": "out"}, {"SIZE": 32})]
    return cases{more}
"""


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("", "leaves out second"),
        (' + [PtxCase(second, {"*i32": "out m"})]', "second has no argument m; there are out, n"),
        (' + [PtxCase(second, {"*i32": "out"})] * 2', "has several of second"),
        (' + [PtxCase(second, {"*i32": "out"})]', ""),
    ],
)
def test_a_kernel_that_is_left_out_or_described_wrongly_is_told(tmp_path: Path, more: str, error: str) -> None:
    (tmp_path / "some_kernels.py").write_text(MODULE.replace("{more}", more))
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-m", "specdec_testing.ptx", "some_kernels", "--arch", "90"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not error:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["case"] for line in lines] == ["first", "second"], done.stderr[-2000:]
        return
    assert done.returncode != 0 and error in done.stderr
