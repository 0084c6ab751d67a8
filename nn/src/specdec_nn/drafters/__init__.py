"""Drafting loops that methods share."""
