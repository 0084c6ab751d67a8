"""Which of the CPU's instruction sets the kernels are compiled for: the best one, or what SPECDEC_CPU names."""

from __future__ import annotations

import logging
import os
from typing import Final

from llvmlite import binding
from numba import config

from specdec_core.errors import ConfigError

VARIABLE: Final = "SPECDEC_CPU"
_AVX512: Final = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
SETS: Final = {"avx2": ("avx2", "fma"), "avx512": _AVX512, "avx512_bf16": (*_AVX512, "avx512bf16")}  # best one last
UNBUILT: Final = {"amx": "amx-bf16"}
# The names of CPUs whose vdpbf16ps takes the time of a float32 multiply-add of the same width, for twice its products;
# on an Intel CPU of model 207 it was measured at 4.4 times that.
FAST_PAIRS: Final = "znver"

logger = logging.getLogger(__name__)


def features() -> frozenset[str]:
    """Return the CPU features that numba compiles for, its environment variables honoured."""
    if config.CPU_FEATURES is not None:
        return frozenset(part[1:] for part in config.CPU_FEATURES.split(",") if part.startswith("+"))
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


def available(found: frozenset[str]) -> list[str]:
    """Return the names of SETS that a CPU with these features can run, best one last."""
    return [name for name, needed in SETS.items() if found.issuperset(needed)]


def choose(wanted: str | None, found: frozenset[str], cpu: str = "") -> str:
    """Return the instruction set to compile for: the best, or the one wanted; "other" where there is none of SETS.

    `cpu` is LLVM's name of the CPU, which decides whether "avx512_bf16" is better than "avx512".
    Raises ConfigError for a name that is unknown, or that this CPU or these kernels lack.
    """
    names = available(found)
    if wanted is None:
        fast = [name for name in names if name != "avx512_bf16" or cpu.startswith(FAST_PAIRS)]
        return fast[-1] if fast else "other"
    if wanted in names:
        return wanted
    choice = f"choose one of {', '.join(names) or 'none on this CPU'}, or unset {VARIABLE}"
    if wanted not in {**SETS, **UNBUILT}:
        raise ConfigError(f"{VARIABLE}={wanted} is no instruction set that the CPU kernels know; {choice}")
    if wanted in UNBUILT and UNBUILT[wanted] in found:
        raise ConfigError(f"{VARIABLE}={wanted}: this CPU may have it, but no kernel is built for it; {choice}")
    raise ConfigError(f"{VARIABLE}={wanted}: this CPU lacks it; {choice}")


def _apply(name: str) -> frozenset[str]:
    """Return the features to compile for, and make numba compile for no more than these in this process."""
    found = features()
    if name != "avx2" or "avx512f" not in found:
        return found
    kept = frozenset(feature for feature in found if not feature.startswith(("avx512", "avx10", "amx")))
    known = binding.get_host_cpu_features()
    config.CPU_FEATURES = ",".join(("+" if feature in kept else "-") + feature for feature in sorted(known))
    if config.CPU_NAME is None:
        config.CPU_NAME = binding.get_host_cpu_name()
    return kept


CHOSEN: Final = choose(os.environ.get(VARIABLE) or None, features(), binding.get_host_cpu_name())
FEATURES: Final = _apply(CHOSEN) if os.environ.get(VARIABLE) else features()
logger.info("CPU kernels are compiled for %s", CHOSEN)
