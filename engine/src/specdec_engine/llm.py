"""The public face of the engine: `LLM`, with vLLM's names and shapes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import torch
from torch import nn

from specdec_core.config.plain_values import plain
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.metrics import SpecMetrics
from specdec_engine.build import EngineOptions, build_engine
from specdec_engine.compare import Divergence
from specdec_engine.loading import Limits, Wanted
from specdec_engine.outputs import RequestOutput
from specdec_engine.reporting.progress import Progress
from specdec_engine.reporting.stats import EngineState
from specdec_engine.requests.run import Run
from specdec_engine.sampling.logprobs import LogprobsMode, check_mode
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.chat import read_template
from specdec_engine.vllm_api.calls import VllmMethods, check_call, read_arguments, read_seed
from specdec_nn.hf.loading import resolve_device

MAX_NUM_SEQS = 64


class LLM(VllmMethods):
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
    seed                 of unseeded requests, together with their arrival number; 0 .. 2^64 - 1, None is 0
    plugins              unpackaged plugins: {"name": module, object or path}
    strict               errors of a proposer are raised instead of contained
    hf_model             a loaded transformers model, used instead of loading `model`'s
    tokenizer            a loaded tokenizer of transformers, or a folder or hub id of one, instead of `model`'s
    prefill_chunk_size   the most prompt ids that run in one step; with `decode_width`, the width of prompt forwards
    logprobs_mode        what `logprobs` of a request gives: "raw_logprobs" of the model's own rows,
                         "processed_logprobs" of rows after all processing, or the logits themselves: "raw_logits",
                         "processed_logits"
    revision             branch, tag or commit of a hub id
    tokenizer_mode       "auto" or "hf": a fast tokenizer where there is one; "slow": the other
    tokenizer_revision   branch, tag or commit of the tokenizer's hub id; None: `revision` for the model's own
    skip_tokenizer_init  load no tokenizer: prompts are ids, and outputs have no text
    chat_template        the template of `chat`, as text or as a file; None: the tokenizer's own
    trust_remote_code    run code that comes with the model or its tokenizer; False: refused by name if it needs any. A
                         draft model has a key of its own for this in `speculative_config`
    fused                on a CPU, run the layers in one pass of compiled code where the model is made of blocks that it
                         knows; False: always run the model's modules
    enable_prefix_caching  a request takes over the longest committed prefix of its ids that is still in the KV arena;
                         None: where the target allows it, and True is refused where it does not
    lora                 a LoRA adapter for all requests: a folder of peft or a hub id; it is merged into the weights.
                         Drafters are not adapted. One adapter a request is left to vLLM
    enforce_eager        on a GPU, launch every kernel by itself; False: forwards of few rows are captured as graphs and
                         replayed
    disable_log_stats    say nothing; else the logger `specdec_engine` gets two lines (INFO) for ten seconds of work

    Other arguments of vLLM's `LLM` are honoured, accepted where they are already the default here, or refused with the
    reason; docs/vllm-scripts.md lists them.

    Raises `ConfigError`, `TargetError` or `PluginError` for what cannot work, before anything runs.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        speculative_config: Any = None,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = MAX_NUM_SEQS,
        kv_cache_tokens: int | None = None,
        decode_width: int | None = None,
        seed: int | None = 0,
        plugins: Mapping[str, Any] | None = None,
        strict: bool = False,
        hf_model: nn.Module | None = None,
        tokenizer: Any = None,
        prefill_chunk_size: int | None = None,
        disable_log_stats: bool = False,
        revision: str | None = None,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        tokenizer_mode: str = "auto",
        tokenizer_revision: str | None = None,
        skip_tokenizer_init: bool = False,
        chat_template: str | PathLike[str] | None = None,
        trust_remote_code: bool = False,
        fused: bool = True,
        enable_prefix_caching: bool | None = None,
        lora: str | PathLike[str] | None = None,
        enforce_eager: bool = False,
        **others: Any,
    ) -> None:
        """Load everything and check it."""
        check_mode(logprobs_mode)
        seed = read_seed(seed)
        self.chat_template = read_template(chat_template)
        sizes = {"kv_cache_tokens": kv_cache_tokens, "prefill_chunk_size": prefill_chunk_size}
        arguments = read_arguments(others, speculative_config, sizes, PARAMETERS)
        max_num_seqs = MAX_NUM_SEQS if max_num_seqs is None else max_num_seqs
        limits = Limits(
            max_model_len=plain(max_model_len),
            max_num_seqs=plain(max_num_seqs),
            kv_cache_tokens=plain(kv_cache_tokens),
            decode_width=plain(decode_width),
            prefill_chunk_size=plain(arguments.prefill_chunk_size),
            kv_cache_memory_bytes=arguments.kv_cache_memory_bytes,
            gpu_memory_utilization=arguments.gpu_memory_utilization,
        )
        options = EngineOptions(
            model=None if model is None else fspath(model),
            speculative_config=arguments.speculative_config,
            limits=limits,
            dtype=dtype,
            device=resolve_device(device),
            plugins=plugins,
            strict=strict,
            hf_model=hf_model,
            revision=revision,
            tokenizer=Wanted(tokenizer, tokenizer_mode, tokenizer_revision, skip_tokenizer_init, trust_remote_code),
            trust_remote_code=trust_remote_code,
            seed=seed,
            logprobs_mode=logprobs_mode,
            log_stats=not disable_log_stats,
            fused=fused,
            lora=None if lora is None else fspath(lora),
            prefix_caching=enable_prefix_caching,
            enforce_eager=enforce_eager,
        )
        self._engine = build_engine(options)
        self.tokenizer = self._engine.target.tokenizer

    @property
    def resolved_config(self) -> ResolvedConfig | None:
        """The speculative configuration as it was resolved, with its decisions; None without speculation."""
        return self._engine.resolved

    @property
    def model(self) -> nn.Module:
        """The transformers model, whose weights `LLM(hf_model=...)` shares; RequestError once the engine is closed."""
        self._engine.check_open()
        return self._engine.target.model

    @property
    def max_model_len(self) -> int:
        """The most ids of prompt and output together."""
        return self._engine.target.info.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """The most requests that run at one time."""
        return self._engine.target.max_num_seqs

    @property
    def kv_cache_tokens(self) -> int:
        """Positions that the KV arena holds, 0 while the engine is paused."""
        return self._engine.target.arena.num_tokens

    @property
    def unfused(self) -> str | None:
        """Why the layers run through the model's modules and not in one compiled pass; None where they do run in it."""
        return self._engine.target.flat.unfused

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._engine.closed

    def compare(
        self, plain: RequestOutput, other: RequestOutput, params: SamplingParams, sample: int = 0
    ) -> Divergence | None:
        """Say where another engine's output of a prompt first differs from this one's, and whether it is rounding.

        Returns None if they are the same. Both outputs must come from the same ids, parameters and arrival number.
        Raises RequestError while requests are running.
        """
        return self._engine.compare(plain, other.outputs[sample].token_ids, params, sample)

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        **others: Any,
    ) -> list[RequestOutput]:
        """Complete prompts: a text, a list of ids, {"prompt_token_ids": [...]}, {"prompt": text}, or a list of these.

        One `SamplingParams` serves all prompts, or a list gives one each. A progress bar appears on a terminal when it
        takes longer than two seconds. Other arguments of vLLM's `generate` are refused unless they are None. Raises
        RequestError before any prompt runs if one of them is wrong.
        """
        check_call("generate", others)
        run = self.start(prompts, sampling_params)
        groups = run.groups
        with Progress(len(groups), enabled=use_tqdm) as progress, run:
            while not run.finished:
                run.step()
                progress.update(sum(group.finished for group in groups), sum(group.emitted for group in groups))
        return run.outputs()

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
        return self._engine.start(prompts, sampling_params)

    def pause(self) -> None:
        """Take the hooks off the model and drop the KV arena until `resume`; refused while requests are running."""
        self._engine.pause()

    def resume(self, kv_cache_tokens: int) -> None:
        """Go on after `pause`, with a KV arena for that many positions."""
        self._engine.resume(kv_cache_tokens)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget what earlier requests have left; to be called when weights were changed. Returns True.

        Requests that run keep their pages and share no more of them; with `reset_running_requests` they are preempted,
        and run their known ids again. `reset_connector` is vLLM's; there is no connector here.
        """
        self._engine.reset_prefix_cache(running=reset_running_requests)
        return True

    def get_metrics(self) -> SpecMetrics:
        """Return the speculation counters of this engine since it was made."""
        return self._engine.metrics

    def get_state(self) -> EngineState:
        """Return what the engine held when it was last measured: every second of work, and at the end of a call."""
        return self._engine.stats.state

    def close(self) -> None:
        """Abort what runs and let weights and caches go, whoever holds this object; later calls raise RequestError."""
        self._engine.close()

    def __enter__(self) -> LLM:
        """Return the engine; leaving closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the engine."""
        self.close()


PARAMETERS = tuple(inspect.signature(LLM).parameters)
