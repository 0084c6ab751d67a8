"""Backends of the op `suffix_forest`: reference defines it in plain Python; numba is compiled, over flat arrays."""
