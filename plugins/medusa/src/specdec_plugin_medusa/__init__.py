"""Medusa: drafts from several heads over one state of the target, each for a place of its own."""

from __future__ import annotations

__version__ = "0.1.0"
