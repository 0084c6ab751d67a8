"""MTP: drafts from the multi-token-prediction modules that some models carry in their own checkpoints."""

from __future__ import annotations

__version__ = "0.1.0"
