"""The op `truncate`: temperature, min-p, top-k and top-p in one."""
