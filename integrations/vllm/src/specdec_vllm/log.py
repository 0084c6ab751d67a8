"""The logger of this distribution, and how many failures in a row switch a method off."""

from __future__ import annotations

import logging
from typing import Final

# A child of vLLM's logger has its handlers and format without importing it.
logger: Final = logging.getLogger("vllm.specdec")

FAILURES: Final = 8
