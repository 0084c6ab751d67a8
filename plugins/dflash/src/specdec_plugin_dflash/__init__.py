"""DFlash and DSpark: a whole block of drafts from one pass of a small head over the target's hidden states."""

from __future__ import annotations

__version__ = "0.1.0"
