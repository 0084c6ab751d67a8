"""An EAGLE-3 head for SmolLM2-135M-Instruct: config.json, weights and draft.json are beside this file."""

from __future__ import annotations

__version__ = "0.1.0"
