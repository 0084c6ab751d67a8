"""Run by test_race in a process of its own, with TRITON_INTERPRET=1: the Triton form against the definition."""

import numpy as np
import torch
import triton
import triton.language as tl

from specdec_core.noise import Noise
from specdec_nn.ops.noise import triton as noise_triton
from specdec_nn.ops.race import triton as race_triton
from specdec_nn.ops.race.reference import exponential_reference, race_reference, uniform_reference

DRAWS = 4096


@triton.jit
def noise_of(key, c0, position, seq_index, purpose, e, u, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    keys, ids, positions, sequences = (
        tl.load(key + at),
        tl.load(c0 + at),
        tl.load(position + at),
        tl.load(seq_index + at),
    )
    tl.store(e + at, noise_triton.exponential(keys, ids, positions, sequences, purpose))
    tl.store(u + at, noise_triton.uniform(keys, ids, positions, sequences, purpose))


def draws(rng, rows):
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    return Noise(keys, rng.integers(0, 2**31, rows).astype(np.int32), rng.integers(0, 2**31, rows).astype(np.int32))


def check_noise(rng):
    noise, ids = draws(rng, DRAWS), torch.from_numpy(rng.integers(0, 2**32, DRAWS))
    places = [noise_triton.on_device(values, ids.device) for values in (noise.positions, noise.seq_index)]
    e, u = (torch.empty(DRAWS, dtype=torch.float64) for _ in range(2))
    noise_of[(1,)](noise_triton.on_device(noise.keys, ids.device), ids, *places, 2, e, u, SIZE=DRAWS)
    assert torch.equal(e, exponential_reference(noise, 2, ids[:, None])[:, 0])
    assert torch.equal(u, uniform_reference(noise, 2, ids[:, None])[:, 0])


def check_winners(rng):
    for trial in range(40):
        rows, vocabulary = int(rng.integers(1, 5)), int(rng.choice([1, 7, 1024, 1025, 3000]))
        probs = torch.from_numpy(
            rng.random((rows, vocabulary), np.float32) * (rng.random((rows, vocabulary)) < rng.random())
        )
        noise, purpose = draws(rng, rows), trial % 4
        assert torch.equal(race_triton.race(probs, noise, purpose), race_reference(probs, noise, purpose))
    probs = torch.zeros(2, 9)
    assert race_triton.race(probs, draws(rng, 2), 0).tolist() == [-1, -1]
    probs[:, 3:5] = float("inf")
    assert race_triton.race(probs, draws(rng, 2), 0).tolist() == [3, 3]


if __name__ == "__main__":
    check_noise(np.random.default_rng(0))
    check_winners(np.random.default_rng(1))
    print("equal")
