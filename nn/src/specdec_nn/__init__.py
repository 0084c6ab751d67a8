"""Torch parts that drafters and engines share: ops and their kernels, caches, layers, checkpoints, drafting loops."""

__version__ = "0.1.0"
