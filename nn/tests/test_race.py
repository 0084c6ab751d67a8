import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from specdec_core.noise import LN2, LOG_COEFFICIENTS, SQRT2, Noise, exponential, philox, uniform
from specdec_nn.ops.race.reference import exponential_reference, philox_word, race_reference, uniform_reference

numba = pytest.importorskip("numba")
noise_numba = pytest.importorskip("specdec_nn.ops.noise.numba")
race_numba = pytest.importorskip("specdec_nn.ops.race.numba")

OPS = {"reference": race_reference, "numba": race_numba.race}

# Random123, kat_vectors: (counter, key) -> four words.
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFFFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def draws(rng, rows):
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    return Noise(keys, rng.integers(0, 2**31, rows).astype(np.int32), rng.integers(0, 2**31, rows).astype(np.int32))


@numba.njit
def noise_of(keys, positions, seq_index, purpose, ids):
    out = np.empty((2, len(ids)), np.float64)
    for n in range(len(ids)):
        k0, k1 = keys[n] & np.uint64(0xFFFFFFFF), keys[n] >> np.uint64(32)
        c0, c1, c2, c3 = np.uint64(ids[n]), np.uint64(positions[n]), np.uint64(seq_index[n]), np.uint64(purpose)
        out[0, n] = noise_numba.exponential(k0, k1, c0, c1, c2, c3)
        out[1, n] = noise_numba.uniform(k0, k1, c0, c1, c2, c3)
    return out


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(counter, key, words):
    assert philox(key, counter) == words
    signed = torch.tensor([key - 2**64 if key >> 63 else key])
    assert philox_word(signed, *(torch.tensor([word]) for word in counter)).item() == words[0]


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_noise_is_bit_equal_to_the_definition(backend):
    rng = np.random.default_rng(0)
    noise, ids = draws(rng, 4000), rng.integers(0, 2**32, 4000)
    ids[:1000] %= 200_000
    if backend == "numba":
        got = noise_of(noise.keys, noise.positions, noise.seq_index, 3, ids)
    else:
        own = torch.from_numpy(ids)[:, None]
        got = torch.cat([exponential_reference(noise, 3, own), uniform_reference(noise, 3, own)], 1).T.numpy()
    for row, definition in zip(got, (exponential, uniform), strict=True):
        columns = zip(noise.keys, noise.positions, noise.seq_index, ids, strict=True)
        want = [definition(int(key), int(position), int(seq), 3, int(token)) for key, position, seq, token in columns]
        assert row.tolist() == want


def test_noise_of_many_ids_is_the_noise_of_each():
    noise = draws(np.random.default_rng(1), 3)
    ids = torch.arange(40)
    whole = exponential_reference(noise, 1, ids)
    assert whole.shape == (3, 40)
    for row in range(3):
        place = int(noise.keys[row]), int(noise.positions[row]), int(noise.seq_index[row])
        assert whole[row].tolist() == [exponential(*place, 1, token) for token in range(40)]


@pytest.mark.parametrize("op", OPS)
def test_the_winner_has_the_largest_quotient_of_the_definition(op):
    rng = np.random.default_rng(2)
    for trial in range(60):
        rows, vocabulary = int(rng.integers(1, 4)), int(rng.choice([1, 5, 63, 64, 65, 200]))
        kept = rng.random((rows, vocabulary)) < rng.choice([0.02, 0.3, 1.0])
        probs = torch.from_numpy((rng.random((rows, vocabulary)) * kept).astype(np.float32))
        noise, purpose = draws(rng, rows), trial % 4
        winners = OPS[op](probs, noise, purpose)
        assert winners.dtype is torch.int64
        for row in range(rows):
            place = int(noise.keys[row]), int(noise.positions[row]), int(noise.seq_index[row]), purpose
            scores = [(p / exponential(*place, v), -v) for v, p in enumerate(probs[row].tolist()) if p > 0]
            assert winners[row].item() == (-max(scores)[1] if scores else -1)


def test_numba_and_reference_agree_on_whole_vocabularies():
    rng = np.random.default_rng(3)
    for vocabulary, kept in ((49152, 1.0), (50257, 0.001), (4097, 0.1), (12289, 0.13)):
        probs = torch.from_numpy(
            (rng.random((3, vocabulary)) * (rng.random((3, vocabulary)) < kept)).astype(np.float32)
        )
        noise = draws(rng, 3)
        assert torch.equal(race_numba.race(probs, noise, 0), race_reference(probs, noise, 0))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("others", [0, 200])
def test_the_lowest_id_wins_a_tie_and_only_survivors_take_part(op, others):
    """Infinite weights tie whatever the noise; 0, negative and NaN weights never win; nobody gives -1."""
    probs = torch.zeros(6, 9000)
    probs[:, 1000 : 1000 + others] = 0.5  # enough of them to take the dense path
    probs[0, [70, 1005, 8999]] = float("inf")
    probs[1, [1190, 1191, 8191]] = float("inf")
    probs[2, [4096, 8192]] = float("inf")
    probs[3, :900] = float("nan")
    probs[3, 900:1000] = -1.0
    probs[3, 8000] = 1e-30
    probs[4] = 0.0
    probs[5] = float("nan")
    winners = OPS[op](probs, draws(np.random.default_rng(4), 6), 0).tolist()
    assert winners[:3] == [70, 1190, 4096]
    assert (winners[3] == 8000) if not others else (1000 <= winners[3] < 1200)
    assert winners[4:] == [-1, -1]


@pytest.mark.parametrize("op", OPS)
def test_a_draw_depends_on_its_own_row_and_nothing_else(op):
    rng = np.random.default_rng(5)
    probs, noise = torch.from_numpy(rng.random((9, 700), np.float32)), draws(rng, 9)
    whole = OPS[op](probs, noise, 0)
    for row in range(9):
        one = slice(row, row + 1)
        alone = Noise(noise.keys[one], noise.positions[one], noise.seq_index[one])
        assert OPS[op](probs[one], alone, 0)[0] == whole[row]
    changed = Noise(noise.keys ^ np.uint64(1 << 40), noise.positions, noise.seq_index)
    for other in (OPS[op](probs, changed, 0), OPS[op](probs, noise, 1)):
        assert (other != whole).sum() >= 7
    assert torch.equal(OPS[op](probs.T.contiguous().T, noise, 0), whole)


@pytest.mark.parametrize("key", ["request key", "position", "sample"])
@pytest.mark.parametrize("op", OPS)
def test_winners_follow_the_distribution(op, key):
    """60,000 draws in one batch that differ in one part of their key alone; weights unnormalised, some truncated."""
    n = 60_000
    weights = torch.tensor([0.0, 3.0, 0.5, 0.0, 2.0, 1.0, 0.25, 0.05, 4.0, 0.0])
    count, fixed = np.arange(n), np.full(n, 17)
    keys = count.astype(np.uint64) if key == "request key" else np.full(n, 99, np.uint64)
    positions = (count if key == "position" else fixed).astype(np.int32)
    noise = Noise(keys, positions, (count if key == "sample" else fixed).astype(np.int32))
    winners = OPS[op](weights.expand(n, -1), noise, 0)
    observed = torch.bincount(winners, minlength=len(weights)).numpy()
    alive = weights.numpy() > 0
    assert observed[~alive].sum() == 0
    expected = weights.numpy().astype(np.float64)[alive]
    assert chisquare(observed[alive], expected / expected.sum() * n).pvalue > 1e-3


@pytest.mark.slow
def test_the_triton_form_is_equal_under_its_interpreter():
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_race.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "equal", done.stderr


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specdec_nn.ops.race import triton as race_triton
kinds = dict(probs="*fp32", stride="i32", vocabulary="i32", keys="*i64", positions="*i64", seq_index="*i64",
             purpose="i32", scores="*fp64", winners="*i32", SIZE="constexpr")
source = ASTSource(race_triton._race, kinds, constexprs={"SIZE": race_triton.STRETCH})
print(triton.compile(source, target=GPUTarget("cuda", 80, 32), options=race_triton.OPTIONS).asm["ptx"])
"""


@pytest.mark.slow
def test_the_triton_form_compiles_for_a_gpu_without_contraction_and_with_whole_constants(tmp_path):
    """No GPU is needed to see that float64 operations stay apart and that no constant was cut to float32."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    if done.returncode and "ptxas" in done.stderr:
        pytest.skip("this Triton comes without an assembler for CUDA")
    ptx = done.stdout
    assert "mul.rn.f64" in ptx and "div.rn.f64" in ptx, done.stderr
    assert "fma.rn.f64" not in ptx
    for constant in (LN2, SQRT2, *LOG_COEFFICIENTS):
        assert f"0d{struct.pack('>d', constant).hex().upper()}" in ptx
