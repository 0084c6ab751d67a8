"""SPECDEC_CPU chooses among the instruction sets that the CPU has; each gives the same bits as the best one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdec_core.errors import ConfigError
from specdec_nn.ops.linear.reference import PackedLinear

choice = pytest.importorskip("specdec_nn.ops.cpu.choice")
linear = pytest.importorskip("specdec_nn.ops.linear.numba").linear

AVX2 = frozenset(("avx2", "fma"))
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
PAIRS = AVX512 | {"avx512bf16"}
HERE = choice.available(frozenset(name for name, has in choice.binding.get_host_cpu_features().items() if has))

CHILD = """
import sys, torch
from specdec_nn.ops.cpu import choice
from specdec_nn.ops.linear.numba import linear
from specdec_nn.ops.linear.reference import PackedLinear
weight, bias, x, want = torch.load(sys.argv[1])
assert torch.equal(linear(x, PackedLinear(weight, bias)), want)
print(choice.CHOSEN, "avx512f" in choice.FEATURES)
"""


STATES = """
import hashlib, torch
from test_fused import made, rows_of
for family in ("llama", "gemma3", "granite", "seed_oss"):
    logits, _ = rows_of(made(family, torch.bfloat16)[0], [1, 6, 4], [])
    print(family, hashlib.sha256(logits.float().numpy().tobytes()).hexdigest())
"""


def test_the_best_set_is_the_default_and_another_may_be_named():
    assert choice.choose(None, PAIRS, "sapphirerapids") == choice.choose(None, AVX512, "znver4") == "avx512"
    assert (
        choice.choose(None, PAIRS, "znver4") == choice.choose("avx512_bf16", PAIRS, "sapphirerapids") == "avx512_bf16"
    )
    assert choice.choose("avx512", PAIRS, "znver4") == "avx512"
    assert choice.choose(None, AVX2) == choice.choose("avx2", AVX512) == "avx2"
    assert choice.choose(None, frozenset()) == "other"


@pytest.mark.parametrize(
    ("name", "found", "reason"),
    [
        ("sse", AVX512, "no instruction set that the CPU kernels know; choose one of avx2, avx512"),
        ("avx512", AVX2, "this CPU lacks it; choose one of avx2,"),
        ("amx", AVX512, "this CPU lacks it"),
        ("avx512_bf16", AVX512, "this CPU lacks it"),
        ("amx", AVX512 | {"amx-bf16"}, "no kernel is built for it"),
        ("avx2", frozenset(), "choose one of none on this CPU"),
    ],
)
def test_a_set_that_is_unknown_or_missing_is_refused_by_name(name, found, reason):
    with pytest.raises(ConfigError, match=f"SPECDEC_CPU={name}.*{reason}"):
        choice.choose(name, found)


@pytest.mark.slow
def test_a_refused_set_is_an_error_and_not_a_slower_kernel():
    lines = "from specdec_core.registry.kernels import Kernels; from specdec_core.registry.catalog import Catalog"
    child = [sys.executable, "-c", f"{lines}; Kernels(Catalog.discover()).get('linear')"]
    run = subprocess.run(child, env={**os.environ, "SPECDEC_CPU": "sse"}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("specdec_core.errors.ConfigError: SPECDEC_CPU=sse is no instruction")


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_every_set_of_this_cpu_gives_the_same_bits(name, tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(shape, generator=generator).bfloat16() for shape in ((131, 577), (131,), (9, 577)))
    torch.save((weight, bias, x, linear(x, PackedLinear(weight, bias))), tmp_path / "case.pt")
    child = [sys.executable, "-c", CHILD, str(tmp_path / "case.pt")]
    run = subprocess.run(child, env={**os.environ, "SPECDEC_CPU": name}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [name, str(name != "avx2")]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*HERE} - {choice.CHOSEN}))  # the suite itself runs on the chosen one
@pytest.mark.parametrize("file", ["test_linear.py", "test_attention.py", "test_tree_attention.py", "test_fused.py"])
def test_identity_and_accuracy_hold_on_every_set_of_this_cpu(name, file):
    child = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(Path(__file__).with_name(file))]
    run = subprocess.run(child, env={**os.environ, "SPECDEC_CPU": name}, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.slow
def test_the_fused_pass_gives_the_same_logits_on_every_set_of_this_cpu():
    found = set()
    for name in HERE:
        child = [sys.executable, "-c", STATES]
        env = {**os.environ, "SPECDEC_CPU": name, "PYTHONPATH": str(Path(__file__).parent)}
        run = subprocess.run(child, env=env, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr[-3000:]
        found.add(run.stdout)
    assert len(found) == 1, found
    assert len(found.pop().split()) == 8
