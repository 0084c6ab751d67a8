"""Reads what a script written for vLLM passes to `LLM` and asks of it, by the tables of `vllm_arguments`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from torch import nn

from specdec_core.config.keys import Refused, is_one_of
from specdec_core.config.plain_values import plain
from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import ConfigError, RequestError, TargetError
from specdec_engine.outputs import RequestOutput
from specdec_engine.sampling_params import SEEDS, SamplingParams
from specdec_engine.text.chat import ChatOptions, ContentFormat, read_template, render
from specdec_engine.vllm_api.arguments import ARGUMENTS, CALL_ARGUMENTS, METHODS, Honoured, Missing

Answer = TypeVar("Answer")
SPELLED: Final = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}


@dataclass(frozen=True)
class EngineArguments:
    """What arguments under vLLM's names come to.

    speculative_config      with `spec_method`, `spec_model` and `spec_tokens` in it; None: no speculation
    prefill_chunk_size      the most prompt ids of a step; None: the engine chooses
    kv_cache_memory_bytes   bytes of the KV arena; None: the engine chooses
    gpu_memory_utilization  the share of a GPU's memory that may be in use; None: no bound
    """

    speculative_config: Any
    prefill_chunk_size: int | None
    kv_cache_memory_bytes: int | None
    gpu_memory_utilization: float | None


def read_arguments(
    others: Mapping[str, Any], speculative_config: Any, sizes: Mapping[str, int | None], known: tuple[str, ...]
) -> EngineArguments:
    """Check arguments that are no parameters of `LLM` and return what they come to.

    `sizes` has `kv_cache_tokens` and `prefill_chunk_size` as they were given, `known` the parameters of `LLM`. Raises
    TargetError listing everything that is wrong: what cannot be honoured, with the reason, and what nobody knows, with
    the nearest name.
    """
    given = {name: plain(value) for name, value in others.items()}
    problems = [problem for name, value in given.items() if (problem := _problem(name, value, known))]
    chunk = _same_as(given, "max_num_batched_tokens", sizes, "prefill_chunk_size", problems)
    cache_bytes = _same_as(given, "kv_cache_memory_bytes", sizes, "kv_cache_tokens", problems)
    share = given.get("gpu_memory_utilization")
    if share is not None and (not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 < share <= 1):
        problems.append(f"gpu_memory_utilization={share!r} is not a number above 0 and at most 1")
    if problems:
        raise TargetError(f"LLM cannot be made: {'; '.join(problems)}")
    config = _with_spelled(speculative_config, {key: given.get(name) for name, key in SPELLED.items()})
    return EngineArguments(config, chunk or sizes["prefill_chunk_size"], cache_bytes, share)


def read_seed(seed: Any) -> int:
    """Return the engine's seed, 0 for None; raises TargetError for what is no 64-bit number."""
    seed = 0 if seed is None else plain(seed)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
        message = f"seed={seed!r} is not a whole number in 0 .. 2^64 - 1, or None for 0"
        raise TargetError(message)
    return seed


def check_call(method: str, others: Mapping[str, Any]) -> None:
    """Raise RequestError for arguments of a call that are neither parameters nor harmless."""
    for name, value in others.items():
        known = CALL_ARGUMENTS.get(name)
        if known is None:
            near = get_close_matches(name, (*CALL_ARGUMENTS, "prompts", "messages", "sampling_params", "use_tqdm"), 1)
            message = f"{method} has no argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            raise RequestError(message)
        if not is_one_of(value, known.harmless):
            message = f"{method}: {name}={value!r:.80} cannot be honoured: {known.reason}; {known.step}"
            raise RequestError(message)


class VllmMethods:
    """Methods that vLLM's `LLM` has and the engine answers from what it is; others raise AttributeError that says why.

    The host class has `tokenizer`, `model`, `generate`, `reset_prefix_cache`, and in `chat_template` the template that
    its caller chose.
    """

    tokenizer: Any
    chat_template: str | None
    generate: Callable[..., list[RequestOutput]]
    reset_prefix_cache: Callable[..., bool]

    @property
    def model(self) -> nn.Module:
        """The transformers model."""
        raise NotImplementedError

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        chat_template_content_format: ContentFormat = "auto",
        **others: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages with role and content) or a list of conversations.

        `specdec_engine.text.chat.ChatOptions` says what the options mean. Raises RequestError before anything runs.
        """
        check_call("chat", others)
        prompts = self.chat_prompts(
            messages,
            chat_template,
            add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            chat_template_content_format=chat_template_content_format,
        )
        return self.generate(prompts, sampling_params, use_tqdm)

    def chat_prompts(
        self,
        messages: Sequence[Any],
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Return the prompts, text and ids, that a chat template makes of conversations; options as those of `chat`."""
        template = self.chat_template if chat_template is None else read_template(chat_template)
        return render(self.tokenizer, messages, ChatOptions(template, add_generation_prompt, **options))

    def get_tokenizer(self) -> Any:
        """Return the tokenizer in use, as transformers has it; None if the engine has none."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of a request that gives none."""
        return SamplingParams()

    def get_world_size(self, include_dp: bool = True) -> int:
        """Return the number of devices."""
        return 1

    def apply_model(self, func: Callable[[nn.Module], Answer]) -> list[Answer]:
        """Return what a function returns for the transformers model, as a list of one; the prefix cache is emptied."""
        try:
            return [func(self.model)]
        finally:
            self.reset_prefix_cache()

    def reset_mm_cache(self) -> None:
        """Do nothing: there is no cache of other inputs than text."""

    def __getattr__(self, name: str) -> Any:
        """Name the reason for a method of vLLM that is not here."""
        known = METHODS.get(name)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if isinstance(known, Missing):
            message = f"{type(self).__name__} has no method {name!r} as vLLM's has: {known.reason}"
        raise AttributeError(message)


def _problem(name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return what is wrong with an argument, "" if nothing is."""
    argument = ARGUMENTS.get(name)
    if argument is None:
        near = get_close_matches(name, (*known, *(n for n, a in ARGUMENTS.items() if isinstance(a, Honoured))), 1)
        hint = f"; did you mean {near[0]!r}?" if near else "; docs/vllm-scripts.md lists all"
        return f"unknown argument {name!r}{hint}"
    if isinstance(argument, Refused) and not is_one_of(value, argument.harmless):
        return f"{name}={value!r:.80} cannot be honoured: {argument.reason} ({argument.step})"
    return ""


def _same_as(
    given: Mapping[str, Any], name: str, sizes: Mapping[str, int | None], own: str, problems: list[str]
) -> int | None:
    """Return a whole number that vLLM's name gives; a problem if ours is given too, or it is none."""
    value = given.get(name)
    if value is None:
        return None
    if sizes[own] is not None:
        problems.append(f"{name} and {own} are both given: leave one out")
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        problems.append(f"{name}={value!r} is not a whole number of at least 1")
    else:
        return value
    return None


def _with_spelled(config: Any, spelled: Mapping[str, Any]) -> Any:
    """Return the speculative configuration with the keys that were given as arguments of their own."""
    spelled = {key: value for key, value in spelled.items() if value is not None}
    if not spelled:
        return config
    keys = {} if config is None else SpeculativeConfig.parse(config).as_json()
    twice = sorted(set(keys) & set(spelled))
    if twice:
        names = [name for name, key in SPELLED.items() if key in twice]
        message = f"speculative_config has {json.dumps(twice)}, and {', '.join(names)} has it too: leave one out"
        raise ConfigError(message)
    return {**keys, **spelled}
