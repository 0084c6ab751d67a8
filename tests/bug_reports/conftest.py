"""Lets the tests of this folder write checkpoints of heads."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "eagle" / "tests"))
