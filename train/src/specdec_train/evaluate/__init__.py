"""`specdec train evaluate`."""
