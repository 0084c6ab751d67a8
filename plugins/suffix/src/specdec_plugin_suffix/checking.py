"""What is wrong with the cache files that a configuration names."""

from __future__ import annotations

from pathlib import Path

from specdec_core.context import MethodContext
from specdec_core.errors import SpecdecError
from specdec_core.sources import Problem
from specdec_plugin_suffix.cache_file import read
from specdec_plugin_suffix.options import SuffixOptions


def problems_of(ctx: MethodContext[SuffixOptions]) -> list[Problem]:
    """Return what is wrong with the cache files: unreadable ones, and files for a cache that shares nothing."""
    options, vocab_size, problems = ctx.options, ctx.target.vocab_size, []
    files = {"load_cache": options.load_cache, "save_cache": options.save_cache}
    if options.suffix_decoding_max_cached_requests == 0:
        for key in (key for key, file in files.items() if file is not None):
            message = "suffix_decoding_max_cached_requests is 0, so nothing is shared that a file could hold"
            problems.append(Problem(key=key, message=message, next_step="leave one of the two out"))
        return problems
    if options.load_cache is not None:
        try:
            largest = read(options.load_cache).vocabulary - 1
        except SpecdecError as error:
            problems.append(Problem(key="load_cache", message=str(error)))
        else:
            if largest >= vocab_size:
                message = (
                    f"{options.load_cache} has the id {largest}, and the target's vocabulary is 0..{vocab_size - 1}"
                )
                next_step = "give a file that was written with the same tokenizer"
                problems.append(Problem(key="load_cache", message=message, next_step=next_step))
    if options.save_cache is not None and not Path(options.save_cache).absolute().parent.is_dir():
        message = f"{options.save_cache} is in a folder that does not exist"
        problems.append(Problem(key="save_cache", message=message, next_step="make the folder first"))
    return problems
