"""Kernels of the verifiers: torch_ref defines the ops, numba and triton are faster and held to it."""

from __future__ import annotations

from pathlib import Path

import specdec.nn
import specdec.noise
from specdec.nn.caches import drop_stale_caches

_CORE = Path(specdec.nn.__file__).parent
# Kernels inline the core's functions of noise and race, and numba would not notice a change of those.
_INLINED = [_CORE / name for name in ("noise_numba.py", "race_numba.py")]
drop_stale_caches(Path(__file__).parent, [*_INLINED, Path(specdec.noise.__file__)])
