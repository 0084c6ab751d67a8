"""Kernels of tree drafting, one file a backend; the torch reference is the definition."""
