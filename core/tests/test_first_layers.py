"""The rules of rounds in a target's first layers, and what a host without them answers."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_core.context import ProposerBuild
from specdec_core.errors import ContractError, TargetError
from specdec_core.first_layers import Round
from specdec_core.traits import MethodTraits


def test_rows_run_one_after_the_other_and_no_more_than_were_granted():
    rounds = Round()
    rounds.begin(["a", "b", "c"], [2, 1, 0])
    rounds.run(["a", "b"], 0)
    rounds.run(["a"], 1)
    for names, depth in ((["a"], 2), (["b"], 1), (["c"], 0), (["d"], 0)):
        with pytest.raises(ContractError, match=f"row {depth} of request '{names[0]}'"):
            rounds.run(names, depth)
    rounds.begin(["a"], [2])
    with pytest.raises(ContractError, match="0 have run of the 2"):
        rounds.run(["a"], 1)
    rounds.run(["a"], 0)
    rounds.end()
    with pytest.raises(ContractError):
        rounds.run(["a"], 1)


class Whole:
    """A target that runs as a whole only."""


class Parts:
    """A target that runs in parts."""

    def first_layers(self, count: int, rows: int, kernels: Any) -> Any:
        return count, rows, kernels


def build(target: Any) -> ProposerBuild:
    return ProposerBuild(
        target=target,
        kernels="kernels",  # type: ignore[arg-type]
        num_speculative_tokens=5,
        max_model_len=64,
        traits=MethodTraits(first_layers=3),
        verifier="coupled",
        strict=True,
        make=lambda part: None,  # type: ignore[arg-type,return-value]
    )


def test_a_target_is_asked_for_what_the_traits_say_and_refused_where_it_runs_as_a_whole():
    assert build(Parts()).first_layers() == (3, 5, "kernels")
    with pytest.raises(TargetError, match=r"first 3 layers of the target by themselves.*Whole has no first_layers"):
        build(Whole()).first_layers()


@pytest.mark.parametrize("wrong", [-1, 1.0, True])
def test_the_trait_is_a_number_of_layers(wrong):
    with pytest.raises(ValueError, match="first_layers"):
        MethodTraits(first_layers=wrong)
