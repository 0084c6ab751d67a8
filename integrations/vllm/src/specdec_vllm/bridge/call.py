"""The call in vLLM's model runner through which drafters of ours are shown a whole step: ids, counts and states."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from specdec_vllm import patching
from specdec_vllm.bridge.rows import Step
from specdec_vllm.figures import Scheduled

MODULE: Final = "vllm.v1.worker.gpu_model_runner"
PROPOSE: Final = "GPUModelRunner.propose_draft_token_ids"
SAMPLE: Final = "GPUModelRunner._sample"
PARAMETERS: Final = (
    "self",
    "scheduler_output",
    "sampled_token_ids",
    "sampling_metadata",
    "hidden_states",
    "sample_hidden_states",
    "aux_hidden_states",
)
# What else of the runner is used: these are asked when the target is loaded and when drafts are verified.
USED: Final = {
    "GPUModelRunner._get_eagle3_aux_layers_from_config": ("self",),
    "GPUModelRunner._get_spec_decode_draft_probs": ("self", "spec_decode_metadata"),
}
SCHEDULED: Final = (
    "num_scheduled_tokens",
    "total_num_scheduled_tokens",
    "scheduled_spec_decode_tokens",
    "preempted_req_ids",
)


def install() -> str:
    """Wrap the runner's call of its drafter. Raises Mismatch, with nothing changed, if vLLM is not as expected."""
    for path, parameters in USED.items():
        patching.find(MODULE, path, parameters)
    fields = patching.find("vllm.v1.core.sched.output", "SchedulerOutput.__dataclass_fields__")
    missing = [name for name in SCHEDULED if name not in fields]
    if missing:
        message = f"SchedulerOutput has no {', '.join(missing)}"
        raise patching.Mismatch(message)
    patching.wrap(MODULE, PROPOSE, PARAMETERS, _with_states)
    return "methods that read states"


def show_answers() -> str:
    """Wrap the runner's sampling: drafters that ask for it are shown the most likely ids of all logits.

    Raises Mismatch, with nothing changed, if vLLM is not as expected.
    """
    patching.wrap(MODULE, SAMPLE, ("self", "logits", "spec_decode_metadata"), _showing)
    return "methods that read the target's answers"


def shows_answers() -> bool:
    """Return whether the runner's sampling is wrapped in this process."""
    return patching.is_ours(patching.find(MODULE, SAMPLE))


def _showing(original: Any) -> Any:
    @functools.wraps(original)
    def sample(self: Any, logits: Any, spec_decode_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        drafter: Any = getattr(self, "drafter", None)
        if getattr(drafter, "verified_top_k", 0) and logits is not None:
            drafter.show_answers(logits)  # now, since sampling may write into them
        return original(self, logits, spec_decode_metadata, *args, **kwargs)

    return sample


def is_installed() -> bool:
    """Return whether the call, and the runner's constructor, are wrapped in this process."""
    places = (PROPOSE, "GPUModelRunner.__init__")
    return all(patching.is_ours(patching.find(MODULE, place)) for place in places)


def _with_states(original: Any) -> Any:
    @functools.wraps(original)
    def propose(
        self: Any,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        drafter: Any = getattr(self, "drafter", None)
        if hasattr(drafter, "show_scheduled"):
            drafter.show_scheduled(Scheduled.of(scheduler_output))
        if not hasattr(drafter, "propose_step"):
            states = (hidden_states, sample_hidden_states, aux_hidden_states)
            return original(self, scheduler_output, sampled_token_ids, sampling_metadata, *states, *args, **kwargs)
        drafts = drafter.propose_step(
            step_of(self, scheduler_output, sampled_token_ids, hidden_states, aux_hidden_states)
        )
        # vLLM reads these when it verifies: distributions of drawn drafts, None for point masses.
        self._draft_probs, self._draft_prob_req_ids = drafts.distributions or (None, None)
        return drafts.rows

    return propose


def step_of(
    runner: Any, scheduled: Any, sampled: Sequence[Sequence[int]], hidden: Any, aux: Sequence[Any] | None
) -> Step:
    """Return what a runner of vLLM knows of the step that it has just sampled."""
    batch = runner.input_batch
    return Step(
        names=batch.req_ids,
        scheduled=scheduled.num_scheduled_tokens,
        drafted=scheduled.scheduled_spec_decode_tokens,
        computed=batch.num_computed_tokens_cpu,
        sampled=sampled,
        lengths=batch.num_tokens_no_spec,
        table=batch.token_ids_cpu,
        hidden=hidden,
        aux=aux,
        preempted=scheduled.preempted_req_ids or (),
    )
