"""What does not fit together in a configuration of `token_recycling`, its files included."""

from __future__ import annotations

from specdec_core.cache_file import file_problems
from specdec_core.context import MethodContext
from specdec_core.sources import Problem
from specdec_plugin_token_recycling.options import RecyclingOptions
from specdec_plugin_token_recycling.table_file import read


def problems_of(ctx: MethodContext[RecyclingOptions]) -> list[Problem]:
    """Return what is wrong with the template and with the files."""
    return [*_template_problems(ctx.options), *_file_problems(ctx.options, ctx.target.vocab_size)]


def _template_problems(options: RecyclingOptions) -> list[Problem]:
    if options.template is None:
        return []
    if options.tree != "static":
        message = f"a template is a static tree, and tree is {options.tree!r}"
        return [Problem(key="template", message=message, next_step='set "tree": "static", or leave template out')]
    highest = max(max(path) for path in options.template)
    if highest < options.candidates:
        return []
    message = f"it has the rank {highest}, and of each id the ranks 0..{options.candidates - 1} are kept"
    return [Problem(key="template", message=message, next_step=f"set candidates to {highest + 1}")]


def _file_problems(options: RecyclingOptions, vocab_size: int) -> list[Problem]:
    files = {"load_cache": options.load_cache, "save_cache": options.save_cache}
    if not options.shared:
        message = "shared is false, so nothing is kept that a file could hold"
        given = [key for key, file in files.items() if file is not None]
        return [Problem(key=key, message=message, next_step="leave one of the two out") for key in given]
    return file_problems(options.load_cache, options.save_cache, vocab_size, lambda file: read(file).vocabulary)
