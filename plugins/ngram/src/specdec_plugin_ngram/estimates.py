"""How likely a copied id is the next one, by how many ids before it are the same in both places; knows no text."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt

# Matches of n ids go on with the same id about n of n + HALF times: SmolLM2 on Spec-Bench, 1 to 30 ids. Hosts compare
# estimates with what came (`specdec_core.host.chances`), so that only their order and their distances count.
HALF: Final = 2.4
LONGEST: Final = 32  # longer matches count as this long


@functools.lru_cache(maxsize=1024)
def chances(matched: int, count: int) -> npt.NDArray[np.float32]:
    """Return [count]: the chance of each copied id with all before it, behind a match of `matched` ids; read-only.

    A copied id that is right makes the match one id longer.
    """
    lengths = np.minimum(matched + np.arange(count), LONGEST)
    found: npt.NDArray[np.float32] = np.cumprod(lengths / (lengths + HALF)).astype(np.float32)
    found.flags.writeable = False
    return found
