"""The method `lookahead`: the target guesses later places beside its own text, and n-grams of that are drafted."""

__version__ = "0.1.0"
