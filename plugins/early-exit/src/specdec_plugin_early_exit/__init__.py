"""The method `early_exit`: the first layers of the target itself draft, and the whole of it verifies."""

__version__ = "0.1.0"
