"""How many positions the KV arena holds, from the memory that is free."""
