"""The exception of the fused pass; no error, since the model then runs through its modules."""

from __future__ import annotations


class Unfit(Exception):
    """Why the fused pass cannot run a model; the text goes into the log."""
