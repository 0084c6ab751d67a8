"""Layers of drafters over flat rows."""
