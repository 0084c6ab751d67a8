"""Runs checks of Triton kernels where they can run: compiled on a GPU, in Triton's interpreter elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def assert_triton_checks_pass(*checks: Path) -> None:
    """Run the tests of files in a process of their own; fail unless all of them pass and none is skipped.

    A process of their own, since Triton is interpreted only if TRITON_INTERPRET is set before its first import. Without
    a GPU, kernels are looked up as Triton's there as well. Skips where Triton is not installed.
    """
    pytest.importorskip("triton")
    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment |= {"TRITON_INTERPRET": "1", "SPECDEC_KERNELS": "triton"}
    plugins = ["-p", "no:cacheprovider", "-p", "specdec_testing.quick_interpreter"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--import-mode=importlib", *map(str, checks)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout
