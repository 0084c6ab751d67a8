"""From prompts and parameters to requests: encoded, checked, with grammar, pipeline and noise key; it runs nothing."""

from __future__ import annotations

import itertools
import logging
from typing import Any

from specdec_core.draft import IntArray
from specdec_core.host.asked import Speculation
from specdec_engine.extra_args import speculation_of
from specdec_engine.group import Group
from specdec_engine.noise_keys import NoiseKeys
from specdec_engine.pipeline import PipelineCompiler
from specdec_engine.prompts import encode_prompts, fit_prompts, pair_params
from specdec_engine.request import Request
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.session import Session
from specdec_engine.stopping import StopRules
from specdec_engine.structured import Grammars

logger = logging.getLogger("specdec_engine")


class Submission:
    """Makes the requests of one engine, numbered in order of arrival."""

    def __init__(self, session: Session, rules: StopRules, keys: NoiseKeys) -> None:
        """Take what all requests share."""
        target = session.target
        self._tokenizer, self._registry, self._resolved = target.tokenizer, session.registry, session.resolved
        self._vocab_size, self._rules, self._keys = target.info.vocab_size, rules, keys
        self._grammars = Grammars(target.tokenizer, self._vocab_size, rules.eos_token_ids)
        self._pipelines = PipelineCompiler(self._vocab_size, rules.eos_token_ids, target.tokenizer, target.device)
        self._lossy = session.resolved is not None and session.resolved.verifier_lossy
        self._arrivals = itertools.count()

    def groups(self, prompts: Any, sampling_params: Any) -> list[Group]:
        """Return a group of requests for each prompt. Raises RequestError before any is numbered if one is wrong."""
        encoded = encode_prompts(prompts, self._tokenizer)
        params = pair_params(sampling_params, len(encoded), self._tokenizer)
        encoded = fit_prompts(encoded, params, self._vocab_size, self._rules.max_length)
        asked = [speculation_of(p, self._resolved, self._registry) for p in params]
        distinct = {id(p): p for p in params}
        compiled = {key: self._pipelines.compile(p) for key, p in distinct.items()}
        states = [
            [(self._grammars.start(p), compiled[id(p)].start(prompt.ids)) for _ in range(p.n)]
            for prompt, p in zip(encoded, params, strict=True)
        ]
        groups = []
        for prompt, chosen, speculation, started in zip(encoded, params, asked, states, strict=True):
            arrival = next(self._arrivals)
            key = self._keys.key(chosen.seed, arrival, prompt.ids, speculation.options)
            requests = [
                Request(f"{arrival}-{i}", i, prompt.ids, chosen, key, arrival, self._tokenizer) for i in range(chosen.n)
            ]
            for request, (grammar, pipeline) in zip(requests, started, strict=True):
                request.grammar, request.pipeline = grammar, pipeline
                self._ask(request, speculation, compiled[id(chosen)].plain_reason)
                request.metrics.lossy = self._lossy
            groups.append(Group(str(arrival), prompt, requests))
        return groups

    def again(self, arrival: int, sample: int, prompt: IntArray, params: SamplingParams) -> Request:
        """Return a request as it was when it arrived, for looking at what it emitted; nobody runs it."""
        key = self._keys.key(params.seed, arrival, prompt)
        request = Request("compare", sample, prompt, params, key, 0)
        request.grammar = self._grammars.start(params)
        request.pipeline = self._pipelines.compile(params).start(prompt)
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
