"""Kernels of prompt lookup: numba has the incremental index; torch_ref and triton have the op `ngram_match`."""
