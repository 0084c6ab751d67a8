"""Requests from their submission to their end: ids, limits, stop rules, and what callers are shown."""
