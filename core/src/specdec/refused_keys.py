"""Keys of vLLM's speculative configuration, of today and of before, that nothing here acts on, and what to use instead.

A key of this table that a method's, verifier's or controller's options declare is theirs and is not looked up here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Refused:
    """Why a key is refused, and the values that ask for what happens anyway; None always does."""

    reason: str
    harmless: tuple[Any, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Say whether the value changes nothing; true and 1 are different values."""
        return value is None or any(type(value) is type(known) and value == known for known in self.harmless)


_NO_PARALLEL: Final = "the host sets how a drafter is spread over devices; leave it out"
_SAME_AS_TARGET: Final = "a drafter takes the target's; leave it out"
_REMOVED: Final = "it was removed from vLLM, and nothing here acts on it; leave it out"
_SYNTHETIC: Final = "it belongs to a verifier that makes up acceptance, which is not selected"
_TYPICAL: Final = "it belongs to a lossy verifier, which is not selected; name one with rejection_sample_method"

REFUSED_KEYS: Final[dict[str, Refused]] = {
    "enforce_eager": Refused("drafters are never captured as graphs here; leave it out", (True,)),
    "draft_tensor_parallel_size": Refused(_NO_PARALLEL, (1,)),
    "tensor_parallel_size": Refused("it is the target's, not the drafter's; leave it out"),
    "speculative_draft_tensor_parallel_size": Refused(_NO_PARALLEL, (1,)),
    "quantization": Refused("quantized drafters are not supported; give an unquantized checkpoint"),
    "moe_backend": Refused(_SAME_AS_TARGET),
    "attention_backend": Refused(_SAME_AS_TARGET, ("auto",)),
    "kv_cache_dtype": Refused(_SAME_AS_TARGET, ("auto",)),
    "revision": Refused("a revision cannot be chosen; download it, and give its folder as model"),
    "code_revision": Refused("no code of a checkpoint is run; leave it out"),
    "draft_load_config": Refused("checkpoints are loaded in one way; leave it out"),
    "disable_padded_drafter_batch": Refused("batches of drafters are never padded; leave it out", (False,)),
    "use_local_argmax_reduction": Refused("it needs tensor parallelism; leave it out", (False,)),
    "use_heterogeneous_vocab": Refused("the selected method drafts in the target's vocabulary only", (False,)),
    "parallel_drafting": Refused("the selected method does not draft in parallel", (False,)),
    "synthetic_acceptance_rates": Refused(_SYNTHETIC),
    "synthetic_acceptance_length": Refused(_SYNTHETIC),
    "enable_adaptive_verification": Refused("name a controller instead", (False,)),
    "target_model_config": Refused("it is internal to vLLM; leave it out"),
    "target_parallel_config": Refused("it is internal to vLLM; leave it out"),
    "draft_parallel_config": Refused("it is internal to vLLM; leave it out"),
    "disable_mqa_scorer": Refused(_REMOVED, (False,)),
    "speculative_disable_mqa_scorer": Refused(_REMOVED, (False,)),
    "disable_logprobs": Refused("speculation leaves log-probabilities on; leave it out", (False,)),
    "disable_logprobs_during_spec_decoding": Refused("speculation leaves log-probabilities on; leave it out", (False,)),
    "acceptance_method": Refused("use rejection_sample_method"),
    "spec_decoding_acceptance_method": Refused("use rejection_sample_method"),
    "posterior_threshold": Refused(_TYPICAL),
    "posterior_alpha": Refused(_TYPICAL),
    "typical_acceptance_sampler_posterior_threshold": Refused(_TYPICAL),
    "typical_acceptance_sampler_posterior_alpha": Refused(_TYPICAL),
    "speculative_token_tree": Refused("shapes of trees are the method's own options"),
    "enable_chunked_prefill": Refused("it is the host's; leave it out"),
    "disable_log_stats": Refused("it is the host's; leave it out"),
    "num_lookahead_slots": Refused("it follows from num_speculative_tokens; leave it out"),
    "speculative_model": Refused("use model"),
    "speculative_method": Refused("use method"),
    "spec_model": Refused("use model"),
    "spec_method": Refused("use method"),
    "spec_tokens": Refused("use num_speculative_tokens"),
    "speculative_max_model_len": Refused("use max_model_len"),
    "speculative_disable_by_batch_size": Refused("use disable_by_batch_size"),
}
