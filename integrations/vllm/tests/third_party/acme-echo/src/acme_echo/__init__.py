"""Drafts what followed the newest token the last time."""
