"""Numbers that kernels of several ops and backends are made with."""

from __future__ import annotations

from typing import Final

LOG2E: Final = 1.4426950408889634  # of 2: exp(x) is 2 to the power of x * LOG2E
