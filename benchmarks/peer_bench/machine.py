"""The machine that is measured: its CPU and instruction sets, its load, and how much of it others use meanwhile."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from time import monotonic
from typing import Any, Final

SETS: Final = (
    "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """Return what the times depend on besides the libraries."""
    return {
        "cpu": _cpu_line("model name") or platform.processor() or platform.machine(),
        "instruction_sets": [name for name in SETS if name in _flags()],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


class Load:
    """Load averages as the run goes on, and the part of the CPU time that was not this process's or its children's."""

    def __init__(self) -> None:
        """Start."""
        self._began, self._busy, self._own = monotonic(), _busy_seconds(), _own_seconds()
        self._averages = [os.getloadavg()[0]]

    def note(self) -> None:
        """Keep the load of now."""
        self._averages.append(os.getloadavg()[0])

    def ended(self) -> dict[str, Any]:
        """Return the load at the start, at most and at the end; ask when the children have been waited for."""
        self.note()
        seconds = monotonic() - self._began
        found: dict[str, Any] = {
            "minutes": seconds / 60,
            "load_average_before": self._averages[0],
            "load_average_most": max(self._averages),
            "load_average_after": self._averages[-1],
        }
        if self._busy is not None and (now := _busy_seconds()) is not None:
            others = now - self._busy - (_own_seconds() - self._own)
            found["cores_used_by_others"] = max(0.0, others / seconds)
        return found


def _cpu_line(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _flags() -> set[str]:
    return set((_cpu_line("flags") or _cpu_line("Features")).split())


def _busy_seconds() -> float | None:
    """Return seconds that all cores together have worked since the start of the system."""
    try:
        counts = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = counts[3] + counts[4]  # idle, and waiting for a disk
    return float(sum(counts) - idle) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
