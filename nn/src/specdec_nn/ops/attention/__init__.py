"""The op `attention`: rows of a flat batch over a paged arena of keys and values."""
