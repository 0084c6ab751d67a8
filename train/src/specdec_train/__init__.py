"""Training of drafting heads from the target alone: the command `specdec train`, and the data on disk."""

__version__ = "0.1.0"
