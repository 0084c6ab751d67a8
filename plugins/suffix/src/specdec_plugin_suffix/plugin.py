"""The hooks of `suffix`; imports neither numpy nor numba."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from specdec_core.markers import hookimpl
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, RequestOptions, ResolvedConfig
    from specdec_core.protocols import Proposer
    from specdec_core.registry.loader import Registry
    from specdec_core.sources import Default, Detection, DraftSource, Problem, TargetHandle, TargetInfo
    from specdec_plugin_suffix.options import SuffixOptions


class SuffixPlugin:
    """Suffix decoding: drafts from the request's own text and from the responses of others."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the method's keys."""
        from specdec_plugin_suffix.options import SuffixOptions

        return SuffixOptions

    @hookimpl
    def specdec_request_options(self, method: str) -> type[RequestOptions]:
        """Return what one request may set."""
        from specdec_plugin_suffix.options import SuffixRequestOptions

        return SuffixRequestOptions

    @hookimpl
    def specdec_method_traits(self, method: str, options: MethodOptions) -> MethodTraits:
        """Return traits of a drafter that needs ids and nothing else."""
        chosen = cast("SuffixOptions", options)
        return MethodTraits(
            shape="tree" if chosen.tree_drafts else "chain",
            rows="none",
            weights="none",
            when_off="catch_up",
            remembers=chosen.suffix_decoding_max_cached_requests > 0,
        )

    @hookimpl
    def specdec_method_defaults(self, method: str, options: MethodOptions) -> Sequence[Default]:
        """Return k: as vLLM does, the depth of the tree."""
        from specdec_core.sources import Default

        depth = cast("SuffixOptions", options).suffix_decoding_max_tree_depth
        reason = f"no draft is longer than the tree is deep, and that is {depth}"
        return [Default(key="num_speculative_tokens", value=depth, reason=reason)]

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim no draft: suffix decoding has none."""
        return None

    @hookimpl
    def specdec_check(self, method: str, options: MethodOptions, target: TargetInfo) -> Sequence[Problem]:
        """Refuse files that cannot be read or written, and files for a cache that shares nothing."""
        return list(_file_problems(cast("SuffixOptions", options), target.vocab_size))

    @hookimpl
    def specdec_make_proposer(
        self, method: str, config: ResolvedConfig, options: MethodOptions, target: TargetHandle, registry: Registry
    ) -> Proposer:
        """Build the proposer on the best installed backend; a cache file is read now."""
        from specdec_plugin_suffix.proposer import SuffixProposer

        forest = registry.kernels.get("suffix_forest")
        return SuffixProposer(cast("SuffixOptions", options), target.info.vocab_size, forest)


def _file_problems(options: SuffixOptions, vocab_size: int) -> list[Problem]:
    """Return what is wrong with the cache files of a configuration."""
    from specdec_core.errors import SpecdecError
    from specdec_core.sources import Problem

    problems = []
    files = {"load_cache": options.load_cache, "save_cache": options.save_cache}
    if options.suffix_decoding_max_cached_requests == 0:
        for key in (key for key, file in files.items() if file is not None):
            message = "suffix_decoding_max_cached_requests is 0, so nothing is shared that a file could hold"
            problems.append(Problem(key=key, message=message, next_step="leave one of the two out"))
        return problems
    if options.load_cache is not None:
        from specdec_plugin_suffix.cache_file import read

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


plugin = SuffixPlugin()
