"""Compiled kernels in numba's cache are never older than any file they are made of, nor tied to a thread count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from specdec.nn.caches import drop_stale_caches

ATTEND = """
import torch, numpy as np
from specdec.nn.attention import AttentionStep, attention_reference
from specdec.nn.attention_numba import attention
from specdec.nn.arena import KVArena, Segment
torch.manual_seed(0)
rows, segment, arena = 200, Segment(), KVArena(400, torch.device("cpu"))
arena.reserve(segment, rows)
def step():
    one = np.zeros(1, np.int32)
    return AttentionStep(arena.slots(segment, 0, rows), one, one + rows, one, one > 0,
                         np.array([segment.pages], np.int32), arena.page_size)
q, k, v = (torch.randn(rows, h, 64) for h in (8, 2, 2))
pages = arena.layer(0, k, v)
for _ in range(20):
    mine = attention(q, k, v, *pages, step(), scaling=0.125)
torch.testing.assert_close(mine, attention_reference(q, k, v, *pages, step(), scaling=0.125))
"""


def test_an_index_older_than_any_source_of_the_package_is_dropped(tmp_path: Path) -> None:
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    now = time.time()
    for name, age in (("kernel.py", 50), ("constants.py", 10), ("__pycache__/old.nbi", 30), ("__pycache__/new.nbi", 5)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (now - age, now - age))
    drop_stale_caches(tmp_path)
    assert [file.name for file in cache.iterdir()] == ["new.nbi"]


def test_kernels_cached_under_one_thread_run_under_two(tmp_path: Path) -> None:
    for threads in ("1", "2"):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": threads}
        environment["MALLOC_PERTURB_"] = "85"
        subprocess.run([sys.executable, "-c", ATTEND], env=environment, check=True, timeout=300)
