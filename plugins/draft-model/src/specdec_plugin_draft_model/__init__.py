"""Drafts from a smaller causal language model that transformers loads: greedy or drawn, its ids the target's or not."""

from __future__ import annotations

__version__ = "0.1.0"
