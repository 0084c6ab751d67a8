"""From what a caller passes as prompts to checked id arrays; everything is checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from specdec_core.draft import IntArray
from specdec_core.errors import RequestError
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.text.prompt_text import check_text, ids_of_text

# Keys of vLLM's prompts for what is not text.
SALT: Final = "cache_salt"
PARTS: Final = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: its ids, its text if it came as one, and the salt of those that it shares caches with."""

    ids: IntArray
    text: str | None
    cache_salt: str | None = None


def encode_prompts(prompts: Any, tokenizer: Any) -> list[Prompt]:
    """Return one prompt for each that was passed. Raises RequestError for the first that is neither text nor ids."""
    listed = _as_list(prompts)
    names = [f"prompt {index}" for index in range(len(listed))] if len(listed) > 1 else ["the prompt"]
    return [_encode(prompt, tokenizer, name) for prompt, name in zip(listed, names, strict=False)]


def fit_prompts(
    prompts: Sequence[Prompt], params: Sequence[SamplingParams], vocab_size: int, max_length: int
) -> list[Prompt]:
    """Shorten the prompts whose parameters say so. Raises RequestError for the first that cannot run."""
    fitted = [_truncate(prompt, p, max_length) for prompt, p in zip(prompts, params, strict=True)]
    for index, (prompt, p) in enumerate(zip(fitted, params, strict=True)):
        name = f"prompt {index}" if len(fitted) > 1 else "the prompt"
        _check(prompt, name, vocab_size, max_length, _to_emit(p))
    return fitted


def _truncate(prompt: Prompt, params: SamplingParams, max_length: int) -> Prompt:
    """Keep the last ids only; -1 leaves room for one id to emit, if any is."""
    count = params.truncate_prompt_tokens
    if count is None:
        return prompt
    return replace(prompt, ids=prompt.ids[-(max_length - _to_emit(params) if count == -1 else count) :])


def _to_emit(params: SamplingParams) -> int:
    """Return the fewest ids that need room behind the prompt."""
    return 0 if params.max_tokens == 0 else 1


def _as_list(prompts: Any) -> list[Any]:
    if isinstance(prompts, (str, Mapping)) or _is_ids(prompts):
        return [prompts]
    if isinstance(prompts, Sequence) or hasattr(prompts, "__array__"):
        return list(prompts)
    message = f"prompts of type {type(prompts).__name__}: expected text, ids, {{'prompt_token_ids': ids}}, or a list"
    raise RequestError(message)


def _is_ids(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu"
    return isinstance(value, Sequence) and len(value) > 0 and all(_is_id(item) for item in value)


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _encode(prompt: Any, tokenizer: Any, name: str) -> Prompt:
    text = salt = None
    if isinstance(prompt, Mapping):
        salt = _salt(prompt, name)
        prompt = _without_parts(prompt, name)
        known = {"prompt", "prompt_token_ids"}
        if not set(prompt) <= {*known, SALT} or not set(prompt) & known:
            message = f"a prompt given as a dict has the keys {sorted(map(str, prompt))}; expected 'prompt_token_ids'"
            raise RequestError(message)
        text = prompt.get("prompt")
        prompt = prompt.get("prompt_token_ids", text)
    if isinstance(prompt, str):
        if tokenizer is None:
            message = "a prompt is text, but this model has no tokenizer; pass ids, or tokenizer= to LLM"
            raise RequestError(message)
        check_text(prompt, name)
        return Prompt(np.array(ids_of_text(prompt, tokenizer), np.int64), prompt, salt)
    if not isinstance(prompt, str) and (_is_ids(prompt) or (isinstance(prompt, Sequence) and len(prompt) == 0)):
        return Prompt(np.array(prompt, np.int64), text, salt)
    message = f"a prompt of type {type(prompt).__name__} is neither text nor a list of whole-number ids"
    raise RequestError(message)


def _salt(prompt: Mapping[Any, Any], name: str) -> str | None:
    salt = prompt.get(SALT)
    if salt is None or (isinstance(salt, str) and salt):
        return salt or None
    message = f"{name} has {SALT}={salt!r:.80}; expected a text that is not empty"
    raise RequestError(message)


def _without_parts(prompt: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
    """Leave the keys of images, sound and video out where they hold nothing; raises RequestError where they do."""
    for key in PARTS:
        given = prompt.get(key)
        if given:
            kinds = f" ({', '.join(sorted(map(str, given)))})" if isinstance(given, Mapping) else ""
            message = (
                f"{name} has {key}{kinds}; prompts are text or ids here, and of a multimodal model only the language "
                f"model runs. Leave it out, or send this prompt to an engine that runs the other parts, such as vLLM"
            )
            raise RequestError(message)
    return {key: value for key, value in prompt.items() if key not in PARTS}


def _check(prompt: Prompt, name: str, vocab_size: int, max_length: int, to_emit: int) -> None:
    if len(prompt.ids) == 0:
        message = f"{name} is empty; at least one id is needed to predict from"
        raise RequestError(message)
    low, high = int(prompt.ids.min()), int(prompt.ids.max())
    if low < 0 or high >= vocab_size:
        message = f"{name} has the id {low if low < 0 else high}, outside the model's vocabulary 0..{vocab_size - 1}"
        raise RequestError(message)
    if len(prompt.ids) + to_emit > max_length:
        behind = "; with at least one id to emit, " if to_emit else "; "
        message = (
            f"{name} has {len(prompt.ids)} ids{behind}{max_length} are all that fit "
            f"(the smaller of max_model_len and kv_cache_tokens)"
        )
        raise RequestError(message)


def pair_params(params: Any, count: int, tokenizer: Any) -> list[SamplingParams]:
    """Return one `SamplingParams` a prompt. Raises RequestError for others, and for stop texts without a tokenizer."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        params = [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        message = f"sampling_params of type {type(params).__name__}: expected SamplingParams or a list of them"
        raise RequestError(message)
    if len(params) != count:
        message = f"{len(params)} sampling params were given for {count} prompts"
        raise RequestError(message)
    if tokenizer is None and any(p.stop_texts for p in params):
        message = "sampling parameter stop needs text, but this model has no tokenizer; use stop_token_ids, or pass one"
        raise RequestError(message)
    return list(params)
