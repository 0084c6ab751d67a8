"""The public face of the engine: `LLM`, with vLLM's names and shapes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch
from torch import nn

from specdec.config import ResolvedConfig
from specdec.draft import StepStats
from specdec.errors import RequestError
from specdec.metrics import SpecMetrics
from specdec.nn.hf.loading import eos_ids, resolve_device
from specdec.noise import request_key
from specdec_engine.compare import Divergence, diagnose
from specdec_engine.drafting import Drafting
from specdec_engine.extra_args import Speculation, speculation_of
from specdec_engine.group import Group
from specdec_engine.limits import DraftLimits
from specdec_engine.logprobs import LogprobReader, LogprobsMode, check_mode
from specdec_engine.outputs import RequestOutput
from specdec_engine.pipeline import PipelineCompiler
from specdec_engine.progress import Progress
from specdec_engine.prompts import encode_prompts, fit_prompts, pair_params
from specdec_engine.request import Request
from specdec_engine.run import Run
from specdec_engine.sampler import Sampler
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.scheduler import Scheduler
from specdec_engine.session import Limits, open_session
from specdec_engine.stats import EngineState, EngineStats
from specdec_engine.step import Stepper
from specdec_engine.stopping import StopRules
from specdec_engine.structured import Grammars

logger = logging.getLogger("specdec_engine")


class LLM:
    """A causal language model with speculative decoding.

    model                a folder (config.json, weights, tokenizer), a .gguf file, or a hub id (org/name, or
                         org/name/file.gguf)
    speculative_config   vLLM's keys, as a dict, a JSON string, "@file.json", "@file.yaml" or a `SpeculativeConfig`;
                         None decodes plainly
    dtype, device        "auto": the checkpoint's dtype; a GPU if there is one
    max_model_len        the most ids of prompt and output together; None: the model's own limit
    max_num_seqs         the most requests that run at one time
    kv_cache_tokens      positions that the KV arena holds; None: from free memory
    decode_width         every decode forward has exactly this many rows, so that tokens are bit-identical with and
                         without speculation in any dtype; None: as many rows as there are
    seed                 of unseeded requests, together with their arrival number
    plugins              unpackaged plugins: {"name": module, object or path}
    strict               errors of a proposer are raised instead of contained
    hf_model, tokenizer  a loaded transformers model and its tokenizer, used instead of loading `model`'s
    prefill_chunk_size   the most prompt ids that run in one step; with `decode_width`, the width of prompt forwards
    logprobs_mode        what `logprobs` of a request gives: "raw_logprobs" of the model's own rows,
                         "processed_logprobs" of rows after all processing, or the logits themselves: "raw_logits",
                         "processed_logits"
    revision             branch, tag or commit of a hub id
    disable_log_stats    say nothing; else the logger `specdec_engine` gets two lines (INFO) for ten seconds of work

    Raises `ConfigError`, `TargetError` or `PluginError` for what cannot work, before anything runs.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        speculative_config: Any = None,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        kv_cache_tokens: int | None = None,
        decode_width: int | None = None,
        seed: int = 0,
        plugins: Mapping[str, Any] | None = None,
        strict: bool = False,
        hf_model: nn.Module | None = None,
        tokenizer: Any = None,
        prefill_chunk_size: int | None = None,
        disable_log_stats: bool = False,
        revision: str | None = None,
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> None:
        """Load everything and check it."""
        check_mode(logprobs_mode)
        limits = Limits(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_cache_tokens=kv_cache_tokens,
            decode_width=decode_width,
            prefill_chunk_size=prefill_chunk_size,
        )
        model = None if model is None else fspath(model)
        session = open_session(
            model,
            speculative_config,
            limits,
            dtype=dtype,
            device=resolve_device(device),
            plugins=plugins,
            strict=strict,
            hf_model=hf_model,
            revision=revision,
            tokenizer=tokenizer,
        )
        self._registry, self._target, self._resolved = session.registry, session.target, session.resolved
        self.tokenizer = session.target.tokenizer
        self._metrics = SpecMetrics(lossy=session.resolved is not None and session.resolved.verifier_lossy)
        self._seed = seed
        self._arrivals = itertools.count()
        target, resolved = self._target, self._resolved
        max_length = min(target.info.max_model_len, target.arena.num_tokens)
        self._rules = StopRules(eos_ids(target.model, self.tokenizer), max_length)
        self._grammars = Grammars(self.tokenizer, target.info.vocab_size, self._rules.eos_token_ids)
        self._pipelines = PipelineCompiler(
            target.info.vocab_size, self._rules.eos_token_ids, self.tokenizer, target.device
        )
        kernels = self._registry.kernels
        self._sampler = Sampler(kernels.get("race", target.device), kernels.get("truncate", target.device))
        drafting = None
        if resolved is not None and session.proposer is not None:
            drafting = Drafting(
                session.proposer,
                resolved.traits,
                DraftLimits(resolved, self._rules, session.controller),
                target.info.vocab_size,
                method=resolved.method,
                strict=strict,
            )
        self._drafting = drafting
        self._controller = session.controller
        self._observed = resolved is not None and self._registry.observed("specdec_step_finished")
        self._scheduler = Scheduler(target, max_num_seqs, self._preempted)
        self._stepper = Stepper(
            target,
            self._scheduler,
            self._sampler,
            self._rules,
            LogprobReader(logprobs_mode, self.tokenizer),
            drafting,
            session.verifier,
            self._observe,
            0 if resolved is None else resolved.num_speculative_tokens,
            exact=resolved is None or not resolved.verifier_lossy,
        )
        self._stats = EngineStats(
            self._metrics,
            self._state,
            lossy_verifier=resolved.verifier if resolved is not None and resolved.verifier_lossy else None,
            log=not disable_log_stats,
        )
        self._closed = False
        if resolved is not None:
            self._registry.broadcast("specdec_session_started", info=resolved.as_json())

    @property
    def resolved_config(self) -> ResolvedConfig | None:
        """The speculative configuration as it was resolved, with its decisions; None without speculation."""
        return self._resolved

    @property
    def model(self) -> nn.Module:
        """The transformers model; other engines over it share its weights (`LLM(hf_model=...)`)."""
        return self._target.model

    @property
    def max_model_len(self) -> int:
        """The most ids of prompt and output together."""
        return self._target.info.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """The most requests that run at one time."""
        return self._target.max_num_seqs

    @property
    def kv_cache_tokens(self) -> int:
        """Positions that the KV arena holds, 0 while the engine is paused."""
        return self._target.arena.num_tokens

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def compare(
        self, plain: RequestOutput, other: RequestOutput, params: SamplingParams, sample: int = 0
    ) -> Divergence | None:
        """Say where another engine's output of a prompt first differs from this one's, and whether it is rounding.

        Returns None if they are the same. Both outputs must come from the same ids, parameters and arrival number.
        Raises RequestError while requests are running.
        """
        with self._target.lock:
            self._require_idle("compare")
            key = request_key(params.seed, self._seed, int(plain.request_id))
            ours, theirs = plain.outputs[sample].token_ids, other.outputs[sample].token_ids
            prompt = np.array(plain.prompt_token_ids, np.int32)
            request = Request("compare", sample, prompt, params, key, 0)
            request.grammar = self._grammars.start(params)
            request.pipeline = self._pipelines.compile(params).start(prompt)
            return diagnose(self._target, self._sampler, request, ours, theirs)

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts: a text, a list of ids, {"prompt_token_ids": [...]}, {"prompt": text}, or a list of these.

        One `SamplingParams` serves all prompts, or a list gives one each. A progress bar appears on a terminal when it
        takes longer than two seconds. Raises RequestError before any prompt runs if one of them is wrong.
        """
        run = self.start(prompts, sampling_params)
        groups = run.groups
        with Progress(len(groups), enabled=use_tqdm) as progress, run:
            while not run.finished:
                run.step()
                progress.update(sum(group.finished for group in groups), sum(group.emitted for group in groups))
        return run.outputs()

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages with role and content) or a list of conversations."""
        prompts = self.chat_prompts(messages, chat_template, add_generation_prompt)
        return self.generate(prompts, sampling_params, use_tqdm)

    def chat_prompts(
        self, messages: Sequence[Any], chat_template: str | None = None, add_generation_prompt: bool = True
    ) -> list[dict[str, list[int]]]:
        """Return the prompts that the tokenizer's chat template makes of conversations."""
        if self.tokenizer is None or not (chat_template or getattr(self.tokenizer, "chat_template", None)):
            message = "chat needs a tokenizer with a chat template; this model has none, so use generate with ids"
            raise RequestError(message)
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        for conversation in conversations:
            if isinstance(conversation, str) or not all(isinstance(message, Mapping) for message in conversation):
                message = f"a conversation is a list of {{'role': ..., 'content': ...}}, got {conversation!r:.80}"
                raise RequestError(message)
        prompts = []
        for conversation in conversations:
            text = self.tokenizer.apply_chat_template(
                conversation, chat_template=chat_template, add_generation_prompt=add_generation_prompt, tokenize=False
            )
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            prompts.append({"prompt_token_ids": list(ids)})
        return prompts

    def stream(
        self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[RequestOutput]:
        """Yield a snapshot of a prompt each time it gains ids, its last one with `finished` True.

        Closing the generator early aborts what has not finished.
        """
        with self.start(prompts, sampling_params) as run:
            yield from run.news()

    def start(self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None) -> Run:
        """Submit prompts and return their run, for callers that step by themselves or need the ids as they come."""
        with self._target.lock:
            groups = self._submit(prompts, sampling_params)
        return Run(groups, self._step, self._stepper, self._stats, self._target.lock)

    def pause(self) -> None:
        """Take the hooks off the model and drop the KV arena until `resume`.

        Raises RequestError while requests are running.
        """
        with self._target.lock:
            self._require_idle("pause")
            self._target.close()

    def resume(self, kv_cache_tokens: int) -> None:
        """Go on after `pause`, with a KV arena for that many positions."""
        with self._target.lock:
            self._require_idle("resume")
            self._target.set_budget(kv_cache_tokens)
            self._rules.max_length = min(self.max_model_len, self.kv_cache_tokens)
            if self._resolved is not None:
                traits = self._resolved.traits
                self._target.tap(hidden=traits.hidden, aux_layers=traits.aux_layers)

    def get_metrics(self) -> SpecMetrics:
        """Return the speculation counters of this engine since it was made."""
        return self._metrics

    def get_state(self) -> EngineState:
        """Return what the engine held when it was last measured: every second of work, and at the end of a call."""
        return self._stats.state

    def close(self) -> None:
        """Abort what runs, close the proposer, give a caller's model back; later calls raise RequestError."""
        with self._target.lock:
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for request in [*self._scheduler.running, *self._scheduler.waiting]:
            self._stepper.end(request, "abort")
        if self._drafting is not None:
            self._drafting.close()
        if self._resolved is not None:
            self._registry.broadcast("specdec_session_finished", summary=self._metrics.as_json())
        self._target.close()

    def __enter__(self) -> LLM:
        """Return the engine; leaving closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the engine."""
        self.close()

    def _submit(self, prompts: Any, sampling_params: Any) -> list[Group]:
        if self._closed:
            message = "this LLM is closed; make a new one"
            raise RequestError(message)
        encoded = encode_prompts(prompts, self.tokenizer)
        params = pair_params(sampling_params, len(encoded), self.tokenizer)
        encoded = fit_prompts(encoded, params, self._target.info.vocab_size, self._rules.max_length)
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
            key = request_key(chosen.seed, self._seed, arrival)
            requests = [
                Request(f"{arrival}-{i}", i, prompt.ids, chosen, key, arrival, self.tokenizer) for i in range(chosen.n)
            ]
            for request, (grammar, pipeline) in zip(requests, started, strict=True):
                request.grammar, request.pipeline = grammar, pipeline
                self._ask(request, speculation, compiled[id(chosen)].plain_reason)
                request.metrics.lossy = self._metrics.lossy
                self._scheduler.add(request)
            groups.append(Group(str(arrival), prompt, requests))
        return groups

    def _ask(self, request: Request, speculation: Speculation, plain_reason: str | None) -> None:
        """Note what the request asks of speculation, and why there is none for it, if so."""
        request.extra, request.max_draft = speculation.options, speculation.max_draft
        if self._drafting is None:
            return
        request.plain_reason = "the request asked for it" if speculation.off else plain_reason
        if request.plain_reason is not None:
            request.retired = True
            logger.info("request %s is decoded without speculation: %s", request.id, request.plain_reason)

    def _step(self) -> list[Request]:
        with self._target.lock:
            self._stats.begin()
            touched = self._stepper.step()
            self._stats.end()
            return touched

    def _require_idle(self, call: str) -> None:
        if self._scheduler.running or self._scheduler.waiting:
            message = f"{call} needs an idle engine; wait until all requests have finished, or abort them"
            raise RequestError(message)

    def _state(self) -> EngineState:
        arena = self._target.arena
        return EngineState(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_pages=arena.num_pages,
            kv_pages_in_use=arena.pages_in_use,
            kv_bytes=arena.memory_bytes(),
            draft_bytes=None if self._drafting is None else self._drafting.memory_bytes(),
        )

    def _preempted(self, request: Request) -> None:
        if self._drafting is not None:
            self._drafting.finish(request, "preempted")

    def _observe(self, stats: StepStats) -> None:
        self._metrics.observe(stats)
        if self._controller is not None:
            self._controller.observe(stats)
        if self._observed:
            self._registry.broadcast("specdec_step_finished", step=stats)
