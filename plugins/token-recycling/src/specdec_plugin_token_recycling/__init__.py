"""The method `token_recycling`: drafts from the target's own answers at earlier rows."""

__version__ = "0.1.0"
