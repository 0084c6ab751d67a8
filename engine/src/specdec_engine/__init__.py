"""The reference engine: Hugging Face models, speculative decoding by plugins."""

from __future__ import annotations

__version__ = "0.1.0"
