"""The op `compact`: moves the keys and values of an accepted path together."""
