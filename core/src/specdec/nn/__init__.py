"""Torch building blocks shared by hosts and model-based plugins; the only part of core that may import torch."""

from __future__ import annotations

from pathlib import Path

from specdec.nn.caches import drop_stale_caches

drop_stale_caches(Path(__file__).parent, [Path(__file__).parent.parent / "noise.py"])
