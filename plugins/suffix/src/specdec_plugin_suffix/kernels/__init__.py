"""Backends of the op `suffix_forest`: reference defines it in plain Python; numba is compiled, over flat arrays."""

from __future__ import annotations

from pathlib import Path

from specdec.nn.caches import drop_stale_caches

drop_stale_caches(Path(__file__).parent)
