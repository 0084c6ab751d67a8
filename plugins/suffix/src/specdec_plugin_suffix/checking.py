"""What is wrong with the cache files that a configuration names."""

from __future__ import annotations

from specdec_core.cache_file import file_problems
from specdec_core.context import MethodContext
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
    return file_problems(options.load_cache, options.save_cache, vocab_size, lambda file: read(file).vocabulary)
