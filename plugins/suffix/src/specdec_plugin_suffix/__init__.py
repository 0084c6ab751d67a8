"""Suffix decoding: drafts are the likeliest continuations in the request's own text and in earlier answers."""

from __future__ import annotations

__version__ = "0.1.0"
