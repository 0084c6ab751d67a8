"""A step on a device reads once, whatever drafts and verifies; on the CPU, with tensors that write down each wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_testing.triton_checks import assert_triton_checks_pass


@pytest.mark.slow
def test_whole_steps_on_a_device_that_is_none() -> None:
    here = Path(__file__)
    names = "device_checks.py", "device_op_checks.py", "watched_device_checks.py"
    assert_triton_checks_pass(*(here.with_name(name) for name in names))
