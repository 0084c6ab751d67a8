"""The op `ancestor_bits`: which earlier nodes of its own tree a row sees."""
