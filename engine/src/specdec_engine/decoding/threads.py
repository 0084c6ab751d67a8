"""How many threads numba's kernels use during a step: as many as torch, and afterwards what the caller had."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torchs_threads(device: torch.device) -> Iterator[None]:
    """Let numba's kernels of this thread use as many threads as torch does, for one setting is what counts here.

    Does nothing where no kernel of numba has been imported, or the work is not on the CPU.
    """
    if "specdec_nn.ops.cpu.jit" not in sys.modules or device.type != "cpu":
        yield
        return
    import numba

    from specdec_nn.ops.cpu.jit import launch_threads

    launch_threads()
    before = numba.get_num_threads()
    wanted = max(1, min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS)))
    if wanted != before:
        numba.set_num_threads(wanted)
    try:
        yield
    finally:
        if wanted != before:
            numba.set_num_threads(before)
