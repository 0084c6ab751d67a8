"""The method `predicted`: drafts follow an expected output that the caller supplies with a request."""

__version__ = "0.1.0"
