"""The op `ngram_match` in Triton gives what its definition gives; compiled where there is a GPU, else interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_testing.triton_checks import assert_triton_checks_pass


@pytest.mark.slow
def test_triton_passes_its_checks():
    assert_triton_checks_pass(Path(__file__).with_name("triton_checks.py"))
