import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec_nn.ops.truncate.reference import WEIGHT_BITS, truncate_reference, weights

sys.path.insert(0, str(Path(__file__).parent))
from truncations import KINDS, SIZES, hard_rows, some_truncation, truncation

truncate_numba = pytest.importorskip("specdec_nn.ops.truncate.numba")

OPS = {"reference": truncate_reference, "numba": truncate_numba.truncate}
every_form = pytest.mark.parametrize("op", OPS)


def survivors(processed):
    return [torch.nonzero(row > -math.inf)[:, 0].tolist() for row in processed]


def spelled_out(logits, temperature, min_p, top_k, top_p):
    """The ids that stay, one at a time, in float64."""
    y = [value / temperature for value in logits]
    best = max(y)
    left = sorted((v for v in range(len(y)) if math.exp(y[v] - best) >= min_p), key=lambda v: (-y[v], v))
    if 0 < top_k < len(left):
        left = [v for v in left if y[v] >= y[left[top_k - 1]]]
    total, mass, kept = sum(math.exp(y[v] - best) for v in left), 0.0, []
    for v in left:
        if kept and top_p < 1 and mass >= top_p * total:
            break
        kept.append(v)
        mass += math.exp(y[v] - best)
    return sorted(kept)


@every_form
def test_the_survivors_are_those_of_a_definition_spelled_out(op):
    """Random rows, in which no boundary is near enough to another one for rounding to matter."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        vocabulary = int(rng.choice(SIZES))
        logits = torch.from_numpy(rng.standard_normal((1, vocabulary)).astype(np.float32) * 3)
        parameters = (
            float(rng.choice([0.5, 1.0, 2.0])),
            float(rng.choice([0.0, 0.03, 0.3])),
            int(rng.choice([0, 1, 3, 40, 500])),
            float(rng.choice([1.0, 0.93, 0.41, 1e-6])),
        )
        processed = OPS[op](logits, truncation(1, *parameters))
        assert survivors(processed) == [spelled_out(logits[0].tolist(), *parameters)], parameters
        alive = processed > -math.inf
        assert torch.equal(processed[alive], (logits / np.float32(parameters[0]))[alive])


@every_form
def test_ties_at_the_edge_of_top_k_all_stay_and_of_top_p_the_lowest_ids_do(op):
    logits = torch.tensor([[0.0, 5.0, -0.0, 0.0, 5.0, -1.0, 0.0]])
    assert survivors(OPS[op](logits, truncation(1, top_k=3))) == [[0, 1, 2, 3, 4, 6]]
    assert survivors(OPS[op](logits, truncation(1, top_k=2))) == [[1, 4]]
    assert survivors(OPS[op](logits, truncation(1, top_k=1))) == [[1, 4]]
    assert survivors(OPS[op](logits, truncation(1, top_p=0.5))) == [[1, 4]], "one of them weighs less than a half"
    assert survivors(OPS[op](logits, truncation(1, top_p=0.49))) == [[1]]
    flat = torch.zeros(1, 10)
    for top_p, count in ((0.3, 3), (0.31, 4), (1e-12, 1), (0.95, 10), (0.9, 9)):
        assert survivors(OPS[op](flat, truncation(1, top_p=top_p))) == [list(range(count))]
    assert survivors(OPS[op](flat, truncation(1, top_k=4, top_p=0.2))) == [[0, 1]], "ties count in what top-k leaves"


@every_form
def test_min_p_comes_before_top_k_and_both_before_top_p(op):
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    assert survivors(OPS[op](logits, truncation(1, min_p=0.6, top_k=3))) == [[0, 1]]
    # 0.4 of the whole is enough for 0.4; of the three that top-k leaves it is 0.44, of the two of min-p 0.57.
    assert survivors(OPS[op](logits, truncation(1, top_p=0.42))) == [[0, 1]]
    assert survivors(OPS[op](logits, truncation(1, top_k=3, top_p=0.42))) == [[0]]
    assert survivors(OPS[op](logits, truncation(1, min_p=0.6, top_p=0.55))) == [[0]]
    assert survivors(OPS[op](logits, truncation(1, min_p=1.0))) == [[0]]


@every_form
def test_what_is_off_truncates_nothing(op):
    logits = hard_rows(np.random.default_rng(1), "half excluded", 4, 200)
    for off in ({}, {"top_k": 200}, {"top_k": 10**6}, {"top_p": 1.0}):
        assert torch.equal(OPS[op](logits, truncation(4, **off)), logits)


@every_form
def test_a_row_without_a_finite_largest_logit_is_only_scaled(op):
    logits = torch.full((3, 70), -math.inf)
    logits[1, 5], logits[1, 6] = math.inf, 1.0
    logits[2, 7] = 4.0
    processed = OPS[op](logits, truncation(3, 2.0, 0.5, 3, 0.5))
    assert survivors(processed) == [[], [5, 6], [7]]
    assert processed[1, 6] == 0.5 and processed[2, 7] == 2.0


def test_all_forms_keep_the_same_ids_of_hard_rows():
    rng = np.random.default_rng(2)
    for trial in range(700):
        rows, vocabulary = int(rng.integers(1, 4)), int(rng.choice(SIZES))
        logits = hard_rows(rng, KINDS[trial % len(KINDS)], rows, vocabulary)
        parameters = some_truncation(rng, rows, vocabulary)
        expected = truncate_reference(logits, parameters)
        assert torch.equal(truncate_numba.truncate(logits, parameters), expected), parameters


def test_all_forms_keep_the_same_ids_of_whole_vocabularies():
    rng = np.random.default_rng(3)
    for spread in (0.0, 0.1, 3.0):
        logits = torch.from_numpy((rng.standard_normal((6, 49152)) * spread).astype(np.float32))
        for parameters in ({"top_p": 0.9}, {"top_k": 50, "top_p": 0.9}, {"top_k": 3000}, {"min_p": 0.02, "top_p": 0.5}):
            chosen = truncation(6, np.linspace(0.6, 1.2, 6), **parameters)
            assert torch.equal(truncate_numba.truncate(logits, chosen), truncate_reference(logits, chosen)), parameters


@every_form
def test_a_row_does_not_depend_on_its_neighbours_and_inputs_stay(op):
    rng = np.random.default_rng(4)
    logits = hard_rows(rng, "few values", 9, 700)
    parameters = some_truncation(rng, 9, 700)
    kept = logits.clone()
    whole = OPS[op](logits, parameters)
    assert torch.equal(logits, kept)
    for row in range(9):
        fields = (parameters.temperature, parameters.min_p, parameters.top_k, parameters.top_p)
        alone = truncation(1, *(values[row] for values in fields))
        assert torch.equal(OPS[op](logits[row : row + 1], alone)[0], whole[row])


def test_weights_are_exponentials_and_never_rise_with_distance():
    distance = -torch.linspace(0, 70, 200_001)
    weight = weights(distance)
    exact = distance.double().exp() * 2.0**WEIGHT_BITS
    assert ((weight - exact).abs() <= exact * 2e-7 + 1).all()
    assert (weight[1:] <= weight[:-1]).all()
    assert weights(torch.tensor([0.0, -math.inf])).tolist() == [2**WEIGHT_BITS, 0]


@pytest.mark.slow
def test_the_triton_form_is_equal_under_its_interpreter():
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_truncate.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "equal", done.stderr


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specdec_nn.ops.truncate import triton as truncate_triton
kinds = dict(logits="*fp32", stride="i32", vocabulary="i32", temperatures="*fp32", floors="*fp32", top_k="*i64",
             top_p="*fp64", out="*fp32", SIZE="constexpr")
source = ASTSource(truncate_triton._truncate, kinds, constexprs={"SIZE": 256})
print(triton.compile(source, target=GPUTarget("cuda", 80, 32), options=truncate_triton.OPTIONS).asm["ptx"])
"""


@pytest.mark.slow
def test_the_triton_form_compiles_for_a_gpu_with_operations_that_are_rounded_on_their_own(tmp_path):
    """No GPU is needed to see that nothing is contracted and that the division is the exact one."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    if done.returncode and "ptxas" in done.stderr:
        pytest.skip("this Triton comes without an assembler for CUDA")
    assert "div.rn.f32" in done.stdout and "mul.rn.f32" in done.stdout, done.stderr
    assert not re.search(r"fma\.rn|div\.full|\.ftz|\.approx", done.stdout)
