"""What importing a plugin does to the process besides: heavy libraries, and state that belongs to everybody."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

HEAVY: Final = ("torch", "numba", "triton", "transformers")
PATCHED: Final = ("torch", "torch.nn.functional", "torch.Tensor", "transformers", "numpy", "builtins")
STATE: Final[dict[str, Callable[[], Any]]] = {
    "signal handlers": lambda: {number: signal.getsignal(number) for number in signal.valid_signals()},
    "warnings filters": lambda: list(warnings.filters),
    "sys.path": lambda: list(sys.path),
    "sys.excepthook": lambda: sys.excepthook,
    "standard streams": lambda: (sys.stdin, sys.stdout, sys.stderr),
    "environment": lambda: dict(os.environ),
    "working directory": os.getcwd,
    "running threads": threading.active_count,
}
OF_LIBRARIES: Final = ("warnings filters", "environment", "running threads")


def snapshot() -> dict[str, Any]:
    """Return the state of this process that plugins may not change, by name, and the heavy libraries in it."""
    return {"heavy": heavy_modules(), **{name: read() for name, read in STATE.items()}}


def heavy_modules() -> list[str]:
    """Return the heavy libraries that are imported."""
    return [name for name in HEAVY if name in sys.modules]


def changed_since(before: dict[str, Any], package: str) -> list[str]:
    """Return in words what is not as it was; `package` is the plugin's own, whose functions may stand in no other."""
    own = heavy_modules() == before["heavy"]  # else these may be the heavy library's doing
    looked_at = {name: read for name, read in STATE.items() if own or name not in OF_LIBRARIES}
    found = [name for name, read in looked_at.items() if read() != before[name]]
    return [*found, *_torch_settings(), *_patches(package)]


def _torch_settings() -> Iterator[str]:
    """Yield settings of torch that are not those it starts with."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if torch.get_default_dtype() != torch.float32:
        yield f"torch's default dtype ({torch.get_default_dtype()})"
    if not torch.is_grad_enabled():
        yield "torch's grad mode"
    if torch.are_deterministic_algorithms_enabled():
        yield "torch's deterministic algorithms"


def _patches(package: str) -> Iterator[str]:
    for name in PATCHED:
        holder = sys.modules.get(name) or getattr(sys.modules.get("torch"), name.rpartition(".")[2], None)
        for key, value in list(vars(holder).items()) if holder is not None else ():
            if str(getattr(value, "__module__", "")).partition(".")[0] == package:
                yield f"{name}.{key} (replaced)"
