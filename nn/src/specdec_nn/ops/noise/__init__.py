"""The noise of `specdec_core.noise` inside compiled kernels."""
