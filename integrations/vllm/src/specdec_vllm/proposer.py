"""The class that vLLM loads for `custom_class`: any installed method that drafts from ids alone; patches nothing."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from specdec_core.draft import Draft, IntArray
from specdec_core.errors import ConfigError
from specdec_core.host import asked
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.controlling import ContainedController
from specdec_core.host.factory import make_controller, make_proposer
from specdec_core.host.reports import Reports
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.protocols import Proposer as MethodProposer
from specdec_vllm.bridge import call
from specdec_vllm.figures import Figures, Scheduled
from specdec_vllm.log import FAILURES, logger
from specdec_vllm.settings import Configured, configure, needs_states, target_info, wanted
from specdec_vllm.target import TokenTarget
from specdec_vllm.views import ByContent, ByName, Names, Requests, SeenRequest, sampled_rows


class Proposer:
    """Drafts for vLLM. What it raises while it is built stops the engine's start; later it raises nothing.

    Without our plugin vLLM tells no names of requests, see `ByContent`. With it, `bind` is called, and then requests
    have names, sampling parameters, and `extra_args["specdec"]`, and it is known which drafts vLLM verified.
    """

    limits_itself: Final = True  # it drafts nothing beyond the longest context, so vLLM need not stop asking before it

    def __init__(self, vllm_config: Any) -> None:
        """Settle the configuration; raises ConfigError or PluginError for one that cannot be used."""
        self._vllm_config: Final = vllm_config
        self._target: Final = target_info(vllm_config.model_config, vllm_config.parallel_config)
        self._configured: Final = self._configure()
        resolved = self._configured.resolved
        self.containment: Final = Containment(resolved.method, off_after=FAILURES, logger=logger)
        self._requests: Requests = ByContent(vllm_config.scheduler_config.max_num_seqs)
        self._drafting: ProposerRunner | None = None
        self._figures: Figures | None = None  # gathered only for a controller or an observer
        self._scheduled: Scheduled | None = None

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """Build the method's proposer; vLLM calls this when the target is there. Raises MakeStageError."""
        if self._drafting is not None:
            return
        resolved, registry = self._configured.resolved, self._configured.registry
        made = make_proposer(resolved, TokenTarget(self._target, self._vllm_config), registry)
        self._run(made)

    def _run(self, made: MethodProposer, max_rows: int | None = None) -> None:
        """Draft with a method's proposer from here on; `max_rows` is what its own cache holds."""
        resolved, registry = self._configured.resolved, self._configured.registry
        controller = make_controller(resolved, registry)
        if controller is not None:
            controller = ContainedController(controller, resolved.controller or "", logger=logger)
            check_alone(controller, resolved.controller or "", self._vllm_config.parallel_config)
        reports = Reports(registry, resolved, controller, silent=not tells(self._vllm_config.parallel_config))
        if reports.wanted:
            self._figures = Figures(reports)
        budget = DraftBudget(resolved, controller, logger)
        runner = ProposerRunner(
            made, resolved.traits, budget, self._target.vocab_size, self.containment, max_rows=max_rows
        )
        self._drafting = runner
        weakref.finalize(self, _close, runner, reports)  # also when the process ends
        reports.started()
        logger.info("drafting with %s (%s %s)", resolved.method, resolved.record.distribution, resolved.record.version)

    def bind(self, runner: Any) -> None:
        """Take names from vLLM's model runner from now on."""
        self.use_names(lambda: names_of(runner.input_batch, runner.requests))

    def show_scheduled(self, scheduled: Scheduled) -> None:
        """Take in what vLLM ran in the step that it asks about next."""
        self._scheduled = scheduled

    def use_names(self, names: Callable[[], Names]) -> None:
        """Take names from here on."""
        self._requests = ByName(names, self._welcome)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        *_args: Any,
        **_kwargs: Any,
    ) -> list[list[int]]:
        """Return one row of drafts for each row of the batch.

        sampled_token_ids   new ids of each row; none inside a prompt
        num_tokens_no_spec  [rows or more] known ids of each row, the new ones included
        token_ids_cpu       [rows or more, max_model_len] int32
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if self.containment.is_off():
            return drafts
        try:
            self._fill(drafts, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:
            self.containment.failed("the call from vLLM", error)
            drafts = [[] for _ in sampled_token_ids]
        if self.containment.is_off():
            self._let_go()
        return drafts

    def _fill(self, drafts: list[list[int]], sampled: Sequence[Sequence[int]], lengths: Any, table: Any) -> None:
        if self._drafting is None:
            self.load_model()
        assert self._drafting is not None
        rows = sampled_rows(sampled, lengths, table)
        requests, done = self._requests.update(rows)
        self._end(self._drafting, done)
        self._count(requests, [row.new for row in rows])
        slots = [request.slot(len(request) - 1, True, self._target.max_model_len) for request in requests]
        for row, ids in zip(rows, self._ask(self._drafting, slots, len(drafts))[1], strict=True):
            drafts[row.place] = ids

    def _end(self, runner: ProposerRunner, done: Sequence[SeenRequest]) -> None:
        for request in done:
            runner.finish(request, "done")
            if self._figures is not None:
                self._figures.forget(request.id)

    def _count(self, requests: Sequence[SeenRequest], new: Sequence[int]) -> None:
        """Tell the controller and observers, if there are any, what the step did that has just been run."""
        scheduled, self._scheduled = self._scheduled, None
        if self._figures is not None and scheduled is not None:
            names = [request.id for request in requests]
            self._figures.verified(names, new, scheduled, self.containment.step)

    def _ask(
        self, runner: ProposerRunner, slots: Sequence[Slot], batch_size: int | None = None
    ) -> tuple[Draft, list[list[int]]]:
        """Return the drafts of a step, and the ids of each row, and note them for the figures of the next step."""
        began = time.perf_counter()
        draft = runner.propose(slots, batch_size)
        rows = chains_of(draft)
        if self._figures is not None:
            asked_for = [runner.asked(slot.request) for slot in slots]
            counts = {
                slot.request.id: (runner.proposed(slot.request), was_asked)
                for slot, was_asked in zip(slots, asked_for, strict=True)
                if slot.newest_known
            }
            self._figures.proposed(counts, time.perf_counter() - began)
        return draft, rows

    def _let_go(self) -> None:
        """Release what the switched-off method holds for requests."""
        for request in self._requests.drain():
            if self._drafting is not None:
                self._drafting.finish(request, "failed")

    def _configure(self) -> Configured:
        configured = configure(wanted(self._vllm_config), self._target)
        if needs_states(configured.resolved):
            what = "hidden states" if configured.resolved.traits.rows != "none" else "answers at verified rows"
            message = (
                f"{configured.resolved.method} reads the target's {what}, which vLLM does not give to "
                'custom_class; leave SPECDEC_VLLM unset and say {"method": "specdec", "model": '
                f'"{configured.resolved.method}", "specdec": {{...}}}} as --speculative-config'
            )
            raise ConfigError(message)
        check_shown(configured)
        return configured

    def _welcome(self, request: SeenRequest) -> None:
        """Read what a new request asks of speculation; what cannot be honoured is logged, and it goes without drafts.

        It may be JSON, since `vllm_xargs` of the OpenAI server holds no mappings.
        """
        raw = (getattr(request.sampling_params, "extra_args", None) or {}).get(asked.KEY)
        try:
            own = asked.read(raw, self._configured.resolved, self._configured.registry)
            request.max_draft, request.extra = own.max_draft, own.options
        except Exception as error:
            request.max_draft = 0
            logger.warning("request %s is decoded without drafts: %s", request.id, error)


def names_of(input_batch: Any, states: Mapping[str, Any]) -> Names:
    """Return what vLLM's batch knows of its requests; `states` are those that have not ended."""
    return Names(input_batch.req_ids, input_batch.num_prompt_tokens, states.keys(), states)


def chains_of(draft: Draft) -> list[list[int]]:
    """Return the ids of each row of a draft in host form, whose rows are chains."""
    ends: IntArray = np.cumsum(np.asarray(draft.lengths, np.int32))
    return [row.tolist() for row in np.split(draft.tokens, ends[:-1])] if len(ends) else []


def check_shown(configured: Configured) -> None:
    """Raise ConfigError for `cut_by_cost`, and for controllers and observers of what vLLM does not show."""
    resolved = configured.resolved
    if resolved.config.cut_by_cost:
        message = (
            "'cut_by_cost': true cannot be honoured here: only the reference engine times its steps for it; leave it "
            "out, or choose a controller"
        )
        raise ConfigError(message)
    wanted = [key for key in ("controller", "observers") if getattr(resolved.config, key)]
    if wanted and not call.is_installed():
        message = (
            f"{' and '.join(wanted)} cannot be honoured here: without specdec's plugin vLLM tells a custom_class "
            "neither names of requests nor what it verified; leave SPECDEC_VLLM unset and use vLLM 0.32"
        )
        raise ConfigError(message)


def check_alone(controller: ContainedController, name: str, parallel_config: Any) -> None:
    """Raise ConfigError for a controller that decides by measured times where several processes hold one target."""
    size = int(parallel_config.tensor_parallel_size)
    if controller.reads_costs and size > 1:
        message = (
            f"controller {name!r} decides by times that each process measures for itself, and with "
            f"tensor_parallel_size={size} processes would disagree; leave it out, or give "
            "num_speculative_tokens_per_batch_size instead"
        )
        raise ConfigError(message)


def tells(parallel_config: Any) -> bool:
    """Return whether this process tells observers: of those that hold one target together, the first."""
    return int(parallel_config.rank) % int(parallel_config.tensor_parallel_size) == 0


def _close(runner: ProposerRunner, reports: Reports) -> None:
    runner.close()
    reports.finished()
