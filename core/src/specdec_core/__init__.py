"""The contracts of speculative decoding as plugins; importing this package loads neither pluggy, pydantic nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from specdec_core.markers import hookimpl as hookimpl

__all__ = ["__version__", "hookimpl"]


def __getattr__(name: str) -> Any:
    """Load `hookimpl` on first use, so that a plain listing does not pay for pluggy."""
    if name == "hookimpl":
        from specdec_core.markers import hookimpl

        return hookimpl
    message = f"module 'specdec_core' has no attribute {name!r}"
    raise AttributeError(message)
