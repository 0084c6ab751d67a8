"""The method `kangaroo`: the target's first layers and a trained adapter draft, the whole target verifies."""

__version__ = "0.1.0"
