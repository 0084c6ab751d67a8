"""The class that vLLM loads for methods that see the target's rows, or whose drafts are drawn; needs our plugin."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from specdec_core.errors import ConfigError, TargetError
from specdec_core.host.factory import make_proposer
from specdec_vllm.bridge_drafting import Drafts, StateDrafting
from specdec_vllm.bridge_limits import problems_of
from specdec_vllm.bridge_rows import Step, spans
from specdec_vllm.bridge_target import BoundedTarget, ModelTarget
from specdec_vllm.guard import logger
from specdec_vllm.proposer import Proposer
from specdec_vllm.settings import DRAFTER_KV_TOKENS, Settled, settle, wanted
from specdec_vllm.views import Row, SeenRequest


class StateProposer(Proposer):
    """Drafts for vLLM from its target's states. What it raises while it is built stops the engine's start."""

    def __init__(self, vllm_config: Any) -> None:
        """Settle the configuration; raises ConfigError or PluginError for one that cannot be used."""
        super().__init__(vllm_config)
        self._runner: Any = None

    def bind(self, runner: Any) -> None:
        """Take requests, and have the states of layers recorded, if the method wants some."""
        super().bind(runner)
        self._runner = runner
        layers = self._settled.resolved.traits.aux_layers
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
        resolved, registry, info = self._settled.resolved, self._settled.registry, self._target
        traits = resolved.traits
        if traits.aux_layers:
            _check_layers(target_model)
        kv_tokens = resolved.host_keys.get(DRAFTER_KV_TOKENS)
        target = BoundedTarget(info, self._vllm_config, kv_tokens)
        if traits.rows != "none":
            target = ModelTarget(info, self._vllm_config, target_model, kv_tokens)
        made = make_proposer(resolved, target, registry)
        drafting = StateDrafting(made, traits, self._limits, info.vocab_size, self.guard, target.kv_cache_tokens)
        if traits.rows != "none" or traits.weights != "none":
            drafting.rehearse(info.hidden_size, target.device, target.dtype)
        self._drafting = drafting
        weakref.finalize(self, drafting.close)  # also when the process ends
        logger.info("drafting with %s (%s %s)", resolved.method, resolved.record.distribution, resolved.record.version)

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_args: Any, **_kwargs: Any) -> list[list[int]]:
        """Return no drafts: this is vLLM's own call, which carries no states. Ours is `propose_step`."""
        self.guard.failed("the call from vLLM", TargetError("vLLM called the drafter past specdec's bridge"))
        return [[] for _ in sampled_token_ids]

    def propose_step(self, step: Step) -> Drafts:
        """Return drafts for a step of vLLM's runner, one row for each row of the batch; raises nothing."""
        nothing = Drafts([[] for _ in step.sampled])
        if self.guard.off is not None:
            return nothing
        try:
            drafts = self._drafts(step)
        except (Exception, SystemExit) as error:
            self.guard.failed("the call from vLLM", error)
            return nothing
        self._release_if_off()
        return drafts

    def _release_if_off(self) -> None:
        if self.guard.off is not None:
            self._let_go()

    def _drafts(self, step: Step) -> Drafts:
        drafting = self._drafting
        assert isinstance(drafting, StateDrafting)  # load_model has built it, or the engine has not started
        drafting.preempted(step.preempted)
        found = spans(step)
        rows = [Row(i, step.table[i, : int(step.lengths[i])], len(new)) for i, new in enumerate(step.sampled)]
        requests, done = self._requests.update(rows)
        for request in done:
            drafting.finish(request, "done")
        return drafting.draft_step(step, requests, found)

    def _settle(self) -> Settled:
        settled = settle(wanted(self._vllm_config), self._target)
        problems = problems_of(settled.resolved.traits, self._vllm_config)
        if problems:
            raise ConfigError(f"{settled.resolved.method} cannot run in vLLM: {'; '.join(problems)}")
        return settled

    def _welcome(self, request: SeenRequest) -> None:
        """Keep the method away from requests that want no drafts, and from those whose input is more than ids."""
        super()._welcome(request)
        state = self._runner.requests.get(request.id)
        more = bool(getattr(state, "mm_features", None)) or getattr(state, "prompt_embeds", None) is not None
        if more and self._settled.resolved.traits.rows == "all":
            logger.info("request %s has more than ids in its prompt, so it is decoded without drafts", request.id)
        if request.max_draft == 0 or (more and self._settled.resolved.traits.rows == "all"):
            request.retired = True


def _check_layers(model: Any) -> None:
    from vllm.model_executor.models.interfaces import supports_eagle3

    if not supports_eagle3(model):
        message = (
            f"vLLM's {type(model).__name__} does not give the states of its layers, which this method reads; use a "
            "method that reads the final states only, or none"
        )
        raise TargetError(message)
