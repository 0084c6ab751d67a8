"""vLLM's own method `suffix` without arctic-inference: ours, behind the class and the keys that vLLM has for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specdec_vllm import patching
from specdec_vllm.proposer import Proposer, names_of
from specdec_vllm.settings import Configured, configure
from specdec_vllm.views import ByName, Names

CONFIG: Final = "vllm.config.speculative"
RUNNER: Final = "vllm.v1.worker.gpu_model_runner"
HAS: Final = "has_arctic_inference"
CLASS: Final = "SuffixDecodingProposer"
METHOD: Final = "suffix"
OPTIONS: Final = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
)


class SuffixProposer(Proposer):
    """Stands where vLLM puts its `SuffixDecodingProposer`."""

    def _configure(self) -> Configured:
        speculative = self._vllm_config.speculative_config
        options = {key: getattr(speculative, key) for key in OPTIONS}
        config = {"method": METHOD, "num_speculative_tokens": speculative.num_speculative_tokens, **options}
        return configure(config, self._target)

    def propose(  # type: ignore[override]  # vLLM calls this class with other arguments
        self,
        num_speculative_tokens: int,
        input_batch: Any,
        sampled_token_ids: Sequence[Sequence[int]],
        *_args: Any,
        **_kwargs: Any,
    ) -> list[list[int]]:
        """Return one row of drafts for each row of the batch."""
        if not isinstance(self._requests, ByName):  # the runner could not be wrapped: then those in the batch live
            self._batch = input_batch
            self.use_names(self._names)
        return super().propose(sampled_token_ids, input_batch.num_tokens_no_spec, input_batch.token_ids_cpu)

    def _names(self) -> Names:
        return names_of(self._batch, dict.fromkeys(self._batch.req_id_to_index))


def stand_in() -> str | None:
    """Make vLLM's `suffix` usable where arctic-inference is missing; say so, or None where nothing is to be done.

    Raises Mismatch, with nothing changed, if vLLM's parts are not as expected.
    """
    has = patching.find(CONFIG, HAS, ())
    if patching.is_ours(has) or has():
        return None
    from specdec_core.registry.catalog import Catalog

    if METHOD not in Catalog.discover().names("proposer"):
        return None
    parameters = ("self", "num_speculative_tokens", "input_batch", "sampled_token_ids")
    patching.find("vllm.v1.spec_decode.suffix_decoding", f"{CLASS}.propose", parameters)
    patching.find(RUNNER, CLASS)

    def has_stand_in() -> bool:
        """Say that suffix decoding can be had."""
        return True

    patching.replace(RUNNER, CLASS, SuffixProposer)
    patching.replace(CONFIG, HAS, has_stand_in)
    return "suffix without arctic-inference"
