"""One engine: its parts as `build_engine` made them, and what callers do with them between and around steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import RequestError
from specdec_core.host.reports import Reports
from specdec_core.host.runner import ProposerRunner
from specdec_core.metrics import SpecMetrics
from specdec_core.registry.loader import Registry
from specdec_engine.compare import Divergence, diagnose
from specdec_engine.decoding.scheduler import Scheduler
from specdec_engine.decoding.step import Stepper
from specdec_engine.decoding.target import Target
from specdec_engine.decoding.threads import torchs_threads
from specdec_engine.outputs import RequestOutput
from specdec_engine.reporting.stats import EngineState, EngineStats
from specdec_engine.requests.group import Group
from specdec_engine.requests.request import Request
from specdec_engine.requests.run import Run
from specdec_engine.requests.stopping import StopRules
from specdec_engine.requests.submission import Submission
from specdec_engine.sampling.noise_keys import NoiseKeys
from specdec_engine.sampling.sampler import Sampler
from specdec_engine.sampling_params import SamplingParams


@dataclass(eq=False, kw_only=True)
class Engine:
    """The parts of one engine. Calls may come from several threads; each holds the target's lock while it works.

    resolved  the speculative configuration, None without speculation; then `reports` is None as well
    metrics   speculation counters since the engine was made
    """

    target: Target
    registry: Registry
    resolved: ResolvedConfig | None
    scheduler: Scheduler
    sampler: Sampler
    rules: StopRules
    keys: NoiseKeys
    submission: Submission
    stepper: Stepper
    metrics: SpecMetrics
    reports: Reports | None
    stats: EngineStats = field(init=False)
    closed: bool = False

    @property
    def runner(self) -> ProposerRunner | None:
        """What calls the proposer, None without speculation."""
        return None if self.stepper.speculation is None else self.stepper.speculation.runner

    def check_open(self) -> None:
        """Raise RequestError once the engine is closed."""
        if self.closed:
            message = "this LLM is closed; make a new one"
            raise RequestError(message)

    def start(self, prompts: Any, sampling_params: Any) -> Run:
        """Submit prompts and return their run. Raises RequestError if one of them is wrong, and submits none then."""
        with self.target.lock:
            groups = self.submit(prompts, sampling_params)
        return Run(groups, self.step, self.stepper, self.stats, self.target.lock)

    def submit(self, prompts: Any, sampling_params: Any) -> list[Group]:
        """Queue the requests of prompts."""
        self.check_open()
        groups = self.submission.groups(prompts, sampling_params)
        for group in groups:
            for request in group.requests:
                self.scheduler.add(request)
        return groups

    def step(self) -> list[Request]:
        """Advance all running requests; return those that gained ids or ended, none once the engine is closed."""
        with self.target.lock:
            if self.closed:
                return []
            with torchs_threads(self.target.device):
                self.stats.begin()
                touched = self.stepper.step()
                self.stats.end()
                return touched

    def compare(
        self, plain: RequestOutput, others: Sequence[int], params: SamplingParams, sample: int
    ) -> Divergence | None:
        """Return the first divergence of a sample of `plain`, an output of this engine, from other ids; None if none.

        Raises RequestError while requests are running.
        """
        self.check_open()
        with self.target.lock:
            self._require_idle("compare")
            prompt = np.array(plain.prompt_token_ids, np.int32)
            request = self.submission.again(int(plain.request_id), sample, prompt, params)
            try:
                return diagnose(self.target, self.sampler, request, plain.outputs[sample].token_ids, others)
            finally:
                self.sampler.finish(request)

    def pause(self) -> None:
        """Take the hooks off the model and drop the KV arena until `resume`; refused while requests are running."""
        with self.target.lock:
            self._require_idle("pause")
            self.target.pause()

    def resume(self, kv_cache_tokens: int) -> None:
        """Go on after `pause`, with a KV arena for that many positions."""
        with self.target.lock:
            self._require_idle("resume")
            self.target.set_budget(kv_cache_tokens)
            self.rules.max_length = min(self.target.info.max_model_len, self.target.arena.num_tokens)
            if self.resolved is not None:
                traits = self.resolved.traits
                self.target.tap(hidden=traits.hidden, aux_layers=traits.aux_layers)

    def reset_prefix_cache(self, *, running: bool) -> None:
        """Forget what requests have left in the KV arena; with `running`, preempt those that run as well."""
        with self.target.lock:
            self.scheduler.prefix.reset()
            if running:
                self.scheduler.preempt_all()

    def close(self) -> None:
        """Abort what runs and let weights and caches go; a second time is a no-op."""
        with self.target.lock:
            if self.closed:
                return
            self.closed = True
            for request in [*self.scheduler.running, *self.scheduler.waiting]:
                self.stepper.end(request, "abort")
            if self.runner is not None:
                self.runner.close()
            if self.reports is not None:
                self.reports.finished()
            self.target.close()
            self.stats.measure()

    def measure(self) -> EngineState:
        """Return what the engine holds now."""
        arena = self.target.arena
        return EngineState(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_pages=arena.num_pages,
            kv_pages_in_use=arena.pages_in_use,
            kv_bytes=arena.memory_bytes(),
            draft_bytes=None if self.runner is None else self.runner.memory_bytes(),
            kv_pages_published=arena.pages_published,
            prefix_cache_queries=self.scheduler.prefix.queries,
            prefix_cache_hits=self.scheduler.prefix.hits,
            part_seconds=() if self.runner is None else tuple(self.runner.part_seconds()),
        )

    def _require_idle(self, call: str) -> None:
        if self.scheduler.running or self.scheduler.waiting:
            message = f"{call} needs an idle engine; wait until all requests have finished, or abort them"
            raise RequestError(message)
