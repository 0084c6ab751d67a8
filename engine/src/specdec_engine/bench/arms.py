"""The engines of a benchmark: one loaded model, and an engine on its weights for plain decoding and for each method."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.errors import ConfigError, RequestError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine.bench.methods import OPTION, PLAIN, Method
from specdec_engine.bench.prompts import BenchPrompt
from specdec_engine.llm import LLM
from specdec_engine.loading import Found, Limits, find_target, target_info
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.prompts import encode_prompts, fit_prompts

SLACK: Final = 64  # positions of a request beyond what it needs: a page begun, rows for a comparison


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How the model is loaded, as in `LLM`."""

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    decode_width: int | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    plugins: Mapping[str, str]


@dataclass(frozen=True)
class Arm:
    """An engine under a name. `exact`: greedy tokens are plain decoding's; `same_draws`: sampled ones are, too."""

    label: str
    llm: LLM
    exact: bool = True
    same_draws: bool = True

    def promises_tokens(self, params: SamplingParams) -> bool:
        """Whether the tokens have to be those of plain decoding, but for rounding."""
        return self.exact and (params.greedy or self.same_draws)


def describe_target(options: ModelOptions) -> TargetInfo:
    """Return the target as its files tell it; loads no weights. Raises TargetError."""
    registry = Registry(Catalog.discover())
    given = Found(None, None, options.model, None)
    found = find_target(given, options.revision, None, registry, options.trust_remote_code)
    limits = Limits(
        max_model_len=options.max_model_len,
        max_num_seqs=1,
        kv_cache_tokens=None,
        decode_width=options.decode_width,
        prefill_chunk_size=None,
    )
    return target_info(found.model, found.hf_config, limits)


def load_plain(options: ModelOptions, most: int) -> Arm:
    """Load the model for plain decoding of at most `most` prompts at one time."""
    llm = LLM(
        options.model,
        dtype=options.dtype,
        device=options.device,
        max_model_len=options.max_model_len,
        max_num_seqs=most,
        decode_width=options.decode_width,
        enable_prefix_caching=False,  # a prompt comes more than once, and each time is to have its whole pass
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        disable_log_stats=True,
    )
    return Arm(PLAIN, llm)


def build_arm(method: Method, plain: LLM, options: ModelOptions) -> Arm:
    """Return a method's engine on the weights of `plain`, with an arena of the same size.

    Raises ConfigError, naming the method, or PluginError.
    """
    try:
        llm = LLM(
            options.model,
            dict(method.config),
            hf_model=plain.model,
            tokenizer=plain.tokenizer,
            max_model_len=plain.max_model_len,
            max_num_seqs=plain.max_num_seqs,
            kv_cache_tokens=plain.kv_cache_tokens,
            decode_width=options.decode_width,
            enable_prefix_caching=False,
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
            plugins=options.plugins,
            disable_log_stats=True,
        )
    except ConfigError as error:
        message = f"{OPTION}, {method.label!r}: {error}"
        raise ConfigError(message) from error
    resolved = llm.resolved_config
    assert resolved is not None
    return Arm(method.label, llm, resolved.lossless, resolved.emits_host_draws)


@contextlib.contextmanager
def closing(arms: Sequence[Arm]) -> Iterator[None]:
    """Close the engines in the end."""
    try:
        yield
    finally:
        for arm in arms:
            arm.llm.close()


def encode(llm: LLM, prompts: Sequence[BenchPrompt], chat: bool, params: SamplingParams) -> list[list[int]]:
    """Return the ids of the prompts, by the chat template if so chosen.

    Raises RequestError for the first that cannot run, naming file and line.
    """
    if llm.tokenizer is None:
        message = "the model has no tokenizer, and the prompts are texts"
        raise RequestError(message)
    found = []
    for prompt in prompts:
        try:
            given: Any = llm.chat_prompts([[{"role": "user", "content": prompt.text}]])[0] if chat else prompt.text
            encoded = encode_prompts(given, llm.tokenizer)
            (ready,) = fit_prompts(encoded, [params], llm._engine.target.info.vocab_size, llm.max_model_len)
        except RequestError as error:
            message = f"{prompt.where}: {error}"
            raise RequestError(message) from error
        found.append(ready.ids.tolist())
    return found


def arena_tokens(lengths: Sequence[int], max_tokens: int, most: int, max_draft: int, max_model_len: int) -> int:
    """Return the positions with which no request of the benchmark waits or is preempted."""
    longest = min(max(lengths) + max_tokens, max_model_len)
    return most * (longest + max_draft + SLACK)
