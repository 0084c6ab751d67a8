"""The speculative configuration: how it is parsed, resolved and explained, and the tables of keys."""
