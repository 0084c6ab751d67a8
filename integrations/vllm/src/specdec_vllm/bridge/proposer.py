"""The class that vLLM loads for methods that see the target's rows, or whose drafts are drawn; needs our plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, TargetError
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.factory import make_proposer
from specdec_core.host.runner import ProposerRunner
from specdec_core.protocols import Proposer as MethodProposer
from specdec_nn.ops.top_ids.reference import top_ids_reference
from specdec_vllm.bridge import call
from specdec_vllm.bridge.probabilities import probabilities
from specdec_vllm.bridge.refusals import problems_of
from specdec_vllm.bridge.rows import Step, answer, commit, spans
from specdec_vllm.bridge.target import BoundedTarget, ModelTarget
from specdec_vllm.log import logger
from specdec_vllm.proposer import Proposer
from specdec_vllm.settings import DRAFTER_KV_TOKENS, Configured, configure, wanted
from specdec_vllm.views import Row, SeenRequest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Drafts:
    """Drafts of a step, one row for each row of the batch; and distributions of drawn ones, with their requests."""

    rows: list[list[int]]
    distributions: tuple[Tensor, list[str]] | None = None


class StateProposer(Proposer):
    """Drafts for vLLM from its target's states. What it raises while it is built stops the engine's start."""

    def __init__(self, vllm_config: Any) -> None:
        """Settle the configuration; raises ConfigError or PluginError for one that cannot be used."""
        super().__init__(vllm_config)
        self._runner: Any = None
        self._said_full = False
        self._top: tuple[Tensor, Tensor] | None = None

    def bind(self, runner: Any) -> None:
        """Take requests, and have the states of layers recorded, if the method wants some."""
        super().bind(runner)
        self._runner = runner
        layers = self._configured.resolved.traits.aux_layers
        if layers:
            # Both are asked when the target is loaded: whether, and of which layers in the sense of R_k.
            runner.use_aux_hidden_state_outputs = True
            runner._get_eagle3_aux_layers_from_config = lambda: layers

    def load_model(self, target_model: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Build the method's proposer over the loaded target, and let it draft once.

        Raises MakeStageError, TargetError, or what the method raises.
        """
        if self._drafting is not None:
            return
        if self._runner is None:
            message = "vLLM's runner was not shown to specdec; see its warnings above, or use another method"
            raise TargetError(message)
        resolved, registry, info = self._configured.resolved, self._configured.registry, self._target
        traits = resolved.traits
        if traits.aux_layers:
            _check_layers(target_model)
        if traits.verified_top_k and not call.shows_answers():
            message = (
                f"{resolved.method} reads what the target answers at verified rows, and this vLLM's sampling is not "
                "the one that specdec knows; see its warnings above, or use another method"
            )
            raise TargetError(message)
        kv_tokens = resolved.host_keys.get(DRAFTER_KV_TOKENS)
        target = BoundedTarget(info, self._vllm_config, kv_tokens)
        if traits.rows != "none":
            target = ModelTarget(info, self._vllm_config, target_model, kv_tokens)
        made = make_proposer(resolved, target, registry)
        if traits.rows != "none" or traits.weights != "none":
            rehearse(made, resolved, target)
        self._run(made, max_rows=target.kv_cache_tokens)

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_args: Any, **_kwargs: Any) -> list[list[int]]:
        """Return no drafts: this is vLLM's own call, which carries no states. Ours is `propose_step`."""
        self.containment.failed("the call from vLLM", TargetError("vLLM called the drafter past specdec's bridge"))
        return [[] for _ in sampled_token_ids]

    @property
    def verified_top_k(self) -> int:
        """How many ids of each row the method wants to see; 0 for none, or while it is not called."""
        return 0 if self._drafting is None else self._drafting.verified_top_k

    def show_answers(self, logits: Tensor) -> None:
        """Take in the logits [rows, V] that vLLM draws from next; raises nothing."""
        try:
            self._top = top_ids_reference(logits, self.verified_top_k)
        except Exception as error:
            self._top = None
            self.containment.failed("the call from vLLM", error)

    def propose_step(self, step: Step) -> Drafts:
        """Return drafts for a step of vLLM's runner, one row for each row of the batch; raises nothing."""
        nothing = Drafts([[] for _ in step.sampled])
        if self.containment.is_off():
            return nothing
        try:
            drafts = self._drafts(step)
        except Exception as error:
            self.containment.failed("the call from vLLM", error)
            return nothing
        self._release_if_off()
        return drafts

    def _release_if_off(self) -> None:
        if self.containment.is_off():
            self._let_go()

    def _drafts(self, step: Step) -> Drafts:
        runner, traits = self._drafting, self._configured.resolved.traits
        assert runner is not None  # load_model has built it, or the engine has not started
        runner.preempt(step.preempted)
        kept = spans(step)
        rows = [Row(i, step.table[i, : int(step.lengths[i])], len(new)) for i, new in enumerate(step.sampled)]
        requests, done = self._requests.update(rows)
        self._end(runner, done)
        self._count(requests, [len(new) for new in step.sampled])
        if runner.wants_rows:
            commit(step, traits, requests, kept, runner.commit)
        top, self._top = self._top, None
        if top is not None:
            answer(step, requests, top, runner.answer)
        places = zip(requests, kept, strict=True)
        draft, rows_of_ids = self._ask(
            runner, [r.slot(span.end, span.sampled, self._target.max_model_len) for r, span in places]
        )
        self._warn_if_full()
        return Drafts(rows_of_ids, probabilities(draft, [r.id for r in requests], self._target.vocab_size))

    def _warn_if_full(self) -> None:
        if self._drafting is not None and self._drafting.full_at is not None and not self._said_full:
            self._said_full = True
            logger.warning(
                "the drafter's cache of %d positions is full; request %s, and whichever comes next, is decoded without "
                "drafts (logged once). drafter_kv_tokens sets the size",
                self._drafting.max_rows,
                self._drafting.full_at,
            )

    def _configure(self) -> Configured:
        configured = configure(wanted(self._vllm_config), self._target)
        problems = problems_of(configured.resolved.traits, self._vllm_config)
        if problems:
            raise ConfigError(f"{configured.resolved.method} cannot run in vLLM: {'; '.join(problems)}")
        return configured

    def _welcome(self, request: SeenRequest) -> None:
        """Keep the method away from requests that want no drafts, and from those whose input is more than ids."""
        super()._welcome(request)
        state = self._runner.requests.get(request.id)
        more = bool(getattr(state, "mm_features", None)) or getattr(state, "prompt_embeds", None) is not None
        if more and self._configured.resolved.traits.rows == "all":
            logger.info("request %s has more than ids in its prompt, so it is decoded without drafts", request.id)
        if more and self._configured.resolved.traits.rows == "all":
            request.max_draft = 0


def rehearse(proposer: MethodProposer, resolved: ResolvedConfig, target: BoundedTarget) -> None:
    """Draft once for a request of one id, so that memory is taken and kernels are built before vLLM measures.

    Raises whatever the proposer raises: at the start that is an error, and no request waits.
    """
    import torch

    traits, info = resolved.traits, target.info
    request = SeenRequest("specdec-rehearsal", 1, np.zeros(2, np.int32), 0)
    request.sampling_params = _Greedy()
    strict = Containment(resolved.method, strict=True)
    runner = ProposerRunner(proposer, traits, DraftBudget(resolved), info.vocab_size, strict)
    state = torch.zeros(1, info.hidden_size, device=target.device, dtype=target.dtype)
    aux = torch.stack([state for _ in traits.aux_layers], dim=1) if traits.aux_layers else None
    with torch.inference_mode():
        try:
            runner.commit(request, 0, 1, state if traits.hidden else None, aux)
            runner.propose([request.slot(1, True, info.max_model_len)])
        finally:
            runner.finish(request, "aborted")


class _Greedy:
    temperature: Final = 0.0
    max_tokens: Final = None


def _check_layers(model: Any) -> None:
    from vllm.model_executor.models.interfaces import supports_eagle3

    if not supports_eagle3(model):
        message = (
            f"vLLM's {type(model).__name__} does not give the states of its layers, which this method reads; use a "
            "method that reads the final states only, or none"
        )
        raise TargetError(message)
