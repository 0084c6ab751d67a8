"""The ops in Triton give what their definitions give; compiled where there is a GPU, else interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_testing.triton_checks import assert_triton_checks_pass

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("checks", ["triton_checks.py", "triton_verify_checks.py"])
def test_triton_passes_its_checks(checks):
    assert_triton_checks_pass(Path(__file__).with_name(checks))


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specdec_plugin_verifiers.kernels import triton as ops
kinds = dict(p="*fp32", q="*fp32", soft="*i8", winners="*i32")
kinds |= dict.fromkeys(["alphas", "betas", "scores", "out", "totals", "ratio", "uniforms"], "*fp64")
places = "column rows q_rows removed keys positions seq_index tokens words children own_row starts stops path"
kinds |= dict.fromkeys(places.split(), "*i64")
mapped = dict(MAPPED=True, SIZE=ops.STRETCH)
kernels = [(ops._excess, mapped), (ops._residual, mapped), (ops._accept, mapped), (ops._uniform, dict(SIZE=4))]
for kernel, constants in [*kernels, (ops._walk, dict(SIZE=4))]:
    types = {name: kinds.get(name, "i32") for name in kernel.arg_names} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constexprs=constants)
    print(triton.compile(source, target=GPUTarget("cuda", 80, 32), options=ops.OPTIONS).asm["ptx"])
"""


def test_the_kernels_compile_for_a_gpu_and_contract_nothing(tmp_path):
    """No GPU is needed to see that all of it is code that a GPU can run."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    if done.returncode and "ptxas" in done.stderr:
        pytest.skip("this Triton comes without an assembler for CUDA")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(".entry") == 5
    assert "div.rn.f64" in done.stdout
    assert "fma.rn.f64" not in done.stdout
