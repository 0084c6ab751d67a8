"""Hydra and Hydra++: heads over one state of the target that read the drafts before their own place."""

from __future__ import annotations

__version__ = "0.1.0"
