"""Rows that are hard to truncate, and parameters for them; for the tests of the op `truncate` in all its forms."""

import numpy as np
import torch

from specdec_nn.ops.truncate.reference import Truncation

SIZES = (1, 2, 5, 63, 64, 65, 200)
KINDS = ("smooth", "few values", "flat", "half excluded", "few values, few left", "far apart", "not finite")


def truncation(rows, temperature=1.0, min_p=0.0, top_k=0, top_p=1.0):
    """Parameters for rows, each one number or one a row."""
    return Truncation(
        np.full(rows, temperature, np.float32),
        np.full(rows, min_p, np.float64),
        np.full(rows, top_k, np.int64),
        np.full(rows, top_p, np.float64),
    )


def hard_rows(rng, kind, rows, vocabulary):
    """Logits [rows, vocabulary] float32: ties, zeros of both signs, excluded ids, rows without a finite largest one."""
    x = rng.standard_normal((rows, vocabulary)) * rng.choice([0.1, 1, 5, 50])
    if kind.startswith("few values"):
        x = np.round(x)
    if kind == "flat":
        x = np.where(rng.random(x.shape) < 0.5, 0.0, -0.0)
    if kind == "far apart":
        x *= 1e4
    if kind in ("half excluded", "few values, few left"):
        x[rng.random(x.shape) < (0.5 if kind == "half excluded" else 0.9)] = -np.inf
    if kind == "not finite":
        x[0] = -np.inf
        x[-1, -1] = np.inf
    return torch.from_numpy(x.astype(np.float32))


def some_truncation(rng, rows, vocabulary):
    """Parameters that are off, extreme, or in between, each row its own."""
    return truncation(
        rows,
        rng.choice([0.1, 0.5, 1, 1.3, 1e6], rows),
        rng.choice([0, 0, 0.001, 0.1, 0.5, 1], rows),
        rng.choice([0, 0, 1, 2, 5, 50, 70, vocabulary, vocabulary + 3], rows),
        rng.choice([1, 1, 0.9, 0.5, 0.1, 1e-9, 0.999999, 1 - 2**-53], rows),
    )
