"""What the CPU kernels of all ops are built from: SIMD pieces, the thread team, numba's cache."""
