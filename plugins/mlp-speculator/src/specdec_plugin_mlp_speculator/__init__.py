"""MLP speculators: drafts from a small network that carries a state from one drafted id to the next."""

from __future__ import annotations

__version__ = "0.1.0"
