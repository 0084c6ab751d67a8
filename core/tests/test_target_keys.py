"""A host lends the target's keys and values, or refuses a method that reads them."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_core.context import ProposerBuild
from specdec_core.errors import TargetError
from specdec_core.traits import MethodTraits


class Closed:
    """A target that keeps its keys to itself."""


class Lending:
    """A target that lends them."""

    def target_keys(self, kernels: Any) -> Any:
        return "keys", kernels


def build(target: Any) -> ProposerBuild:
    return ProposerBuild(
        target=target,
        kernels="kernels",  # type: ignore[arg-type]
        num_speculative_tokens=5,
        max_model_len=64,
        traits=MethodTraits(target_keys=True),
        verifier="coupled",
        strict=True,
        make=lambda part: None,  # type: ignore[arg-type,return-value]
    )


def test_a_target_is_asked_for_its_keys_and_refused_where_it_keeps_them():
    assert build(Lending()).target_keys() == ("keys", "kernels")
    with pytest.raises(TargetError, match=r"attends to the target's own keys and values.*Closed has no target_keys"):
        build(Closed()).target_keys()
