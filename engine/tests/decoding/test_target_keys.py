"""The engine lends its target's keys while drafts are made, and at no other time."""

from __future__ import annotations

import pytest

from specdec_core.errors import ContractError
from specdec_engine import LLM
from specdec_testing.fakes import FakeRequest
from specdec_testing.targets import tiny_target


def test_keys_cannot_be_read_outside_of_propose():
    with LLM(hf_model=tiny_target("llama"), strict=True) as llm:
        target = llm._engine.target
        keys = target.target_keys(None)
        request = FakeRequest("a", [5, 6, 7]).view
        with pytest.raises(ContractError, match="request 'a' is inside its prompt or not running"):
            keys.of([request])
        with target.lent([]), pytest.raises(ContractError, match="request 'a'"):
            keys.of([request])
        assert keys.memory_bytes() == 0
        keys.close()
