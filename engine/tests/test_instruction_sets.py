"""The engine on each instruction set that the CPU has, and on a machine that has no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fused_families import FUSED

from specdec_testing.families import RIGHT, SIMILAR

choice = pytest.importorskip("specdec_nn.ops.cpu.choice")

HERE = choice.available(frozenset(name for name, has in choice.binding.get_host_cpu_features().items() if has))
FAMILIES = sorted([*RIGHT, *SIMILAR])
SHARES = 3

ANSWER = """
import shutil
from specdec_engine import LLM, SamplingParams
from specdec_testing.targets import tiny_target
assert not any(shutil.which(name) for name in ("cc", "gcc", "g++", "c++", "clang", "clang++"))
with LLM(hf_model=tiny_target("llama"), speculative_config={"method": "ngram", "num_speculative_tokens": 3}) as llm:
    assert llm._engine.target.flat.fused is not None
    out = llm.generate({"prompt_token_ids": [5, 6, 7] * 9}, SamplingParams(temperature=0.0, max_tokens=8))
print(len(out[0].outputs[0].token_ids))
"""


def cases_of(family: str) -> list[str]:
    same = "test_a_target_gives_the_same_tokens_with_and_without_the_fused_pass"
    return [same, *(["test_drafts_change_no_token_in_bfloat16_at_a_fixed_width"] if family in FUSED else [])]


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", sorted({*HERE} - {choice.CHOSEN}))  # the suite itself runs on the chosen one
def test_answers_of_every_family_are_the_same_with_and_without_the_fused_pass_on_every_set(
    name: str, share: int
) -> None:
    """And drafts change none of them, where `test_fused.py` expects it."""
    file = Path(__file__).with_name("test_fused.py")
    cases = [f"{file}::{test}[{family}]" for family in FAMILIES[share::SHARES] for test in cases_of(family)]
    child = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *cases]
    run = subprocess.run(child, env={**os.environ, "SPECDEC_CPU": name}, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout[-3000:]
    assert f"{len(cases)} passed" in run.stdout


@pytest.mark.slow
def test_a_machine_without_a_compiler_runs_the_same_engine(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "CC": "/none", "CXX": "/none"}
    child = subprocess.run([sys.executable, "-c", ANSWER], env=env, capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stderr[-3000:]
    assert child.stdout.split()[-1] == "8"
