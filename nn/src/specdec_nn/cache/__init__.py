"""Keys and values: the paged arena of a target, and the cache of a drafter."""
