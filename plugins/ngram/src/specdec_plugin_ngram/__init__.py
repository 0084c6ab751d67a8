"""Prompt lookup: drafts are copied from what follows an earlier occurrence of the last tokens."""

from __future__ import annotations

__version__ = "0.1.0"
