"""Run by test_race in a process of its own, with TRITON_INTERPRET=1: the Triton form against the definition."""

import numpy as np
import torch
import triton
import triton.language as tl

from specdec.nn import race_triton
from specdec.nn.race import exponential_reference, race_reference
from specdec.noise import Noise

DRAWS = 4096


@triton.jit
def noise_of(k0, k1, c0, c1, c2, c3, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    words = [tl.load(word + at).to(tl.uint32) for word in (k0, k1, c0, c1, c2, c3)]
    tl.store(out + at, race_triton._exponential(words[0], words[1], words[2], words[3], words[4], words[5]))


def draws(rng, rows):
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    return Noise(keys, rng.integers(0, 2**31, rows).astype(np.int32), rng.integers(0, 2**31, rows).astype(np.int32))


def check_noise(rng):
    noise, ids = draws(rng, DRAWS), torch.from_numpy(rng.integers(0, 2**32, DRAWS))
    keys = torch.from_numpy(noise.keys.view(np.int64))
    position, seq = torch.from_numpy(noise.positions).long(), torch.from_numpy(noise.seq_index).long()
    out = torch.empty(DRAWS, dtype=torch.float64)
    purpose = torch.full_like(ids, 2)
    noise_of[(1,)](keys & 0xFFFFFFFF, (keys >> 32) & 0xFFFFFFFF, ids, position, seq, purpose, out, SIZE=DRAWS)
    assert torch.equal(out, exponential_reference(noise, 2, ids[:, None])[:, 0])


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
