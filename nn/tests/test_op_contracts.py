"""Backends of ops keep the promises of kernels, as the kit has them for everybody."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_core.noise import Noise, Purpose
from specdec_testing.kernel import KernelContract


class TestTopIds(KernelContract):
    tolerance = 1e-5

    @pytest.fixture
    def op(self):
        return "top_ids"

    @pytest.fixture
    def cases(self):
        generator = torch.Generator().manual_seed(0)
        return [(torch.randn(rows, 70, generator=generator), n) for rows in (0, 1, 5) for n in (1, 4, 80)]


class TestRace(KernelContract):
    @pytest.fixture
    def op(self):
        return "race"

    @pytest.fixture
    def cases(self):
        rng = np.random.default_rng(0)
        found = []
        for rows in (1, 6):
            noise = Noise(
                rng.integers(0, 2**63, rows).astype(np.uint64),
                np.arange(rows, dtype=np.int32),
                np.zeros(rows, np.int32),
            )
            distribution = torch.from_numpy(rng.dirichlet(np.ones(300), rows).astype(np.float32))
            found += [(distribution, noise, purpose) for purpose in (Purpose.TARGET, Purpose.DRAFT)]
        return found
