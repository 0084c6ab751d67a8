"""Kernels of the verifiers: torch_ref defines the ops, numba and triton are faster and held to it."""
