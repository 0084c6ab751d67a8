"""From prompts and parameters to requests: encoded, checked, with grammar, pipeline and noise key; it runs nothing."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.draft import IntArray
from specdec_core.host.asked import Speculation
from specdec_core.registry.loader import Registry
from specdec_engine.decoding.target import Target
from specdec_engine.requests.extra_args import speculation_of
from specdec_engine.requests.group import Group
from specdec_engine.requests.request import Request
from specdec_engine.requests.stopping import StopRules
from specdec_engine.sampling.grammars import Grammars
from specdec_engine.sampling.noise_keys import NoiseKeys
from specdec_engine.sampling.pipeline import Compiled, PipelineCompiler
from specdec_engine.sampling.sampler import Sampler
from specdec_engine.sampling.state import SamplingState
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.prompts import encode_prompts, fit_prompts, pair_params

logger = logging.getLogger("specdec_engine")


class Submission:
    """Makes the requests of one engine, numbered in order of arrival."""

    def __init__(
        self,
        target: Target,
        registry: Registry,
        resolved: ResolvedConfig | None,
        sampler: Sampler,
        rules: StopRules,
        keys: NoiseKeys,
    ) -> None:
        """Take what all requests share."""
        self._tokenizer, self._registry, self._resolved = target.tokenizer, registry, resolved
        self._sampler = sampler
        self._vocab_size, self._rules, self._keys = target.info.vocab_size, rules, keys
        self._grammars = Grammars(target.tokenizer, self._vocab_size, rules.eos_token_ids)
        self._pipelines = PipelineCompiler(self._vocab_size, rules.eos_token_ids, target.tokenizer, target.device)
        self._lossy = resolved is not None and resolved.verifier_lossy
        self._arrivals = itertools.count()

    def groups(self, prompts: Any, sampling_params: Any) -> list[Group]:
        """Return a group of requests for each prompt. Raises RequestError before any is numbered if one is wrong."""
        encoded = encode_prompts(prompts, self._tokenizer)
        params = pair_params(sampling_params, len(encoded), self._tokenizer)
        encoded = fit_prompts(encoded, params, self._vocab_size, self._rules.max_length)
        asked = [
            speculation_of(p, self._resolved, self._registry, prompt.cache_salt)
            for p, prompt in zip(params, encoded, strict=True)
        ]
        compiled = self._compiled(params)
        states = [
            [SamplingState(self._grammars.start(meant.params), meant.start(prompt.ids)) for _ in range(meant.params.n)]
            for prompt, meant in zip(encoded, compiled, strict=True)
        ]
        groups = []
        for prompt, meant, speculation in zip(encoded, compiled, asked, strict=True):
            arrival, chosen = next(self._arrivals), meant.params
            key = self._keys.key(chosen.seed, arrival, prompt.ids, speculation.options)
            requests = [
                Request(f"{arrival}-{i}", i, prompt.ids, chosen, key, arrival, self._tokenizer) for i in range(chosen.n)
            ]
            for request in requests:
                self._ask(request, speculation, meant.plain_reason)
                request.metrics.lossy = self._lossy
                request.cache_salt = prompt.cache_salt
            groups.append(Group(str(arrival), prompt, requests))
        for group, started in zip(groups, states, strict=True):
            for request, state in zip(group.requests, started, strict=True):
                self._sampler.start(request, state)
        return groups

    def _compiled(self, params: Sequence[SamplingParams]) -> list[Compiled]:
        """Return what each prompt's parameters mean; neighbours that share them share that as well."""
        compiled: list[Compiled] = []
        for chosen in params:
            shared = compiled and compiled[-1].params is chosen
            compiled.append(compiled[-1] if shared else self._pipelines.compile(chosen))
        return compiled

    def again(self, arrival: int, sample: int, prompt: IntArray, params: SamplingParams) -> Request:
        """Return a request as it was when it arrived, for looking at what it emitted; nobody runs it.

        The sampler keeps its state until `finish`.
        """
        key = self._keys.key(params.seed, arrival, prompt)
        request = Request("compare", sample, prompt, params, key, 0)
        pipeline = self._pipelines.compile(params).start(prompt)
        self._sampler.start(request, SamplingState(self._grammars.start(params), pipeline))
        return request

    def _ask(self, request: Request, speculation: Speculation, plain_reason: str | None) -> None:
        """Note what the request asks of speculation, and why there is none for it, if so."""
        request.extra, request.max_draft = speculation.options, speculation.max_draft
        if self._resolved is None:
            return
        request.plain_reason = "the request asked for it" if speculation.off else plain_reason
        if request.plain_reason is not None:
            request.max_draft = 0
            logger.info("request %s is decoded without speculation: %s", request.id, request.plain_reason)
