"""Controllers: how many tokens each request drafts, by measured acceptance and cost."""

__version__ = "0.1.0"
