"""The way into vLLM for methods that are shown the target's rows, keep a cache, or draw their drafts."""
