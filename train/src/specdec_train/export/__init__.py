"""`specdec train export`."""
