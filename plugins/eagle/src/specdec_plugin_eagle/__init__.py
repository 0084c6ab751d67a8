"""EAGLE: drafts from a small head over the target's hidden states; chains, static trees and dynamic trees."""

from __future__ import annotations

__version__ = "0.1.0"
