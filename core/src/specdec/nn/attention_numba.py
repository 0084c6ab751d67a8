"""The attention op on a CPU: decode rows by a compiled kernel over pages, prompt chunks by the reference's large path.

A decode row's result is a function of its own query and its own keys. Keys are cut at fixed positions, tiles of KEYS
within chunks of CHUNK counted from key 0; a row goes through the tiles that it sees, in order, by a product of its own
heads alone, and the chunks it sees are merged in order. The rest of its segment shares the converted tiles with it,
and nothing else.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from numba import config, get_thread_id, njit, prange
from torch import Tensor

from specdec.nn import attention_simd as ops
from specdec.nn import simd
from specdec.nn.attention import AttentionStep, attend_prompt, attention_reference, gather_pages

KEYS: Final = ops.KEYS
BLOCK: Final = ops.BLOCK
CHUNK: Final = 4 * KEYS  # keys a task: long contexts spread over the cores, for one merge a chunk
SERIAL_MERGE: Final = 64  # (row, head) pairs up to which a second parallel region costs more than it saves

_KINDS: Final = {getattr(torch, name): index for index, name in enumerate(ops.KINDS)}
_LOG2E: Final = ops.LOG2E
_LOWEST: Final = ops.LOWEST
_THREADS: Final = int(config.NUMBA_NUM_THREADS)
_NO_SINKS: Final = np.empty(0, np.float32)


@njit(nogil=True, cache=True)
def _point(table, page_size, first, end, base, stride, pages, page_stride, key_stride, out):  # type: ignore[no-untyped-def]
    pass
