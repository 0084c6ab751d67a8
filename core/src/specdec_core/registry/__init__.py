"""Plugins as entry points: the catalog of metadata, staged loading, and the choice of kernels."""
