"""The method `combine`: drafts of several methods, put together by a rule."""

__version__ = "0.1.0"
