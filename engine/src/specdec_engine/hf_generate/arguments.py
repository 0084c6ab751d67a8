"""What `model.generate` hands to a custom decoding loop: what is refused by name, and the rest as sampling parameters.

The fields of a `GenerationConfig` arrive twice: as fields, and as the processors and criteria that `generate` has made
of them. Processors are taken as they come, so that everything they do holds; the usual ones become parameters of the
sampler, which does the same for many rows at once.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from types import FrameType
from typing import Any, Final

import torch
import transformers
from torch import Tensor
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.utils import GenerationMixin

from specdec_core.errors import RequestError
from specdec_engine.sampling_params import SamplingParams

_BEAMS: Final = "beams are not decoded here"
_SPECULATION: Final = "it is another way of speculating; give it in speculative_config"
_SCORES: Final = "the engine keeps no such tensors"
_WHOLE_BATCH: Final = "it looks at the prompts of the whole batch"
# Field: values without effect besides None and False, and why others are refused.
REFUSED_FIELDS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "num_beams": ((1,), _BEAMS),
    "num_beam_groups": ((1,), _BEAMS),
    "diversity_penalty": ((0.0,), _BEAMS),
    "constraints": ((), _BEAMS),
    "force_words_ids": ((), _BEAMS),
    "penalty_alpha": ((0.0,), "contrastive search is not decoded here"),
    "dola_layers": ((), "DoLa is not decoded here"),
    "guidance_scale": ((1, 1.0), "it runs the model a second time for each token"),
    "use_mtp": ((), _SPECULATION),
    "prompt_lookup_num_tokens": ((), _SPECULATION),
    "assistant_early_exit": ((), _SPECULATION),
    "assistant_ensemble_weight": ((), _SPECULATION),
    "speculation_type": ((), _SPECULATION),
    "is_assistant": ((), _SPECULATION),
    "encoder_repetition_penalty": ((1.0,), _WHOLE_BATCH),
    "encoder_no_repeat_ngram_size": ((0,), _WHOLE_BATCH),
    "output_attentions": ((), _SCORES),
    "output_hidden_states": ((), _SCORES),
    "output_scores": ((), _SCORES),
    "output_logits": ((), _SCORES),
    "token_healing": ((), "it needs a tokenizer, which `generate` does not pass on"),
    "cache_implementation": (
        ("dynamic", "static", "hybrid", "sliding_window"),
        "the engine has a KV cache of its own, which is neither quantized nor offloaded",
    ),
}
# Fields that arrive as processors, criteria or lengths, and are honoured as such.
HONOURED_FIELDS: Final = frozenset(
    {"max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "do_sample"}
    | {"temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}
    | {"repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "renormalize_logits", "forced_bos_token_id"}
    | {"forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"}
    | {"begin_suppress_tokens", "sequence_bias", "watermarking_config", "num_return_sequences"}
    | {"return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id"}
)
# Fields that say how transformers' own loop, cache or drafts work, which are not used, or that are no parameters.
WITHOUT_EFFECT: Final = frozenset(
    {"use_cache", "cache_config", "max_cache_len", "compile_config", "disable_compile", "continuous_batching_config"}
    | {"low_memory", "prefill_chunk_size", "early_stopping", "length_penalty", "decoder_start_token_id"}
    | {"num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"}
    | {"max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind"}
    | {"transformers_version"}
)
# What a model's forward calls its cache, in transformers from 5.24 on and before.
CACHES: Final = ("cache", "past_key_values")
# Arguments of the model's forward that `generate` adds by itself, or that are looked at here.
KNOWN_MODEL_KWARGS: Final = frozenset(
    {"attention_mask", "position_ids", "logits_to_keep", "use_cache", "cache_position", *CACHES}
)
# Arguments of `generate` that it does not pass on to a custom loop.
HIDDEN_ARGUMENTS: Final = frozenset({"streamer", "assistant_model", "synced_gpus"})


def refusal(what: str, reason: str) -> RequestError:
    """Return the error for an argument that cannot be honoured."""
    return RequestError(f"generate's {what} cannot be honoured by custom_generate=specdec_engine.generate: {reason}")


def check_config(config: GenerationConfig) -> None:
    """Raise RequestError for the first field that cannot be honoured."""
    for name, (harmless, reason) in REFUSED_FIELDS.items():
        value = getattr(config, name, None)
        if value is not None and value is not False and value not in harmless:
            raise refusal(f"{name}={value!r}", reason)
    known = HONOURED_FIELDS | WITHOUT_EFFECT | set(REFUSED_FIELDS)
    for name, default in vars(GenerationConfig()).items():
        value = getattr(config, name, default)
        if name not in known and not name.startswith("_") and value not in (None, False, default):
            raise refusal(f"{name}={value!r}", "it is not known here")


def check_model_kwargs(kwargs: Mapping[str, Any], input_ids: Tensor) -> None:
    """Raise RequestError for arguments of the model's forward that a flat ragged batch has no place for."""
    for name, value in kwargs.items():
        if value is not None and name not in KNOWN_MODEL_KWARGS:
            raise refusal(name, "a flat batch of ids has no place for it")
    for name in CACHES:
        cache = kwargs.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
            raise refusal(name, "the engine has a KV cache of its own, and leaves none behind")
    if input_ids.shape[1] == 0:
        raise refusal("call without input_ids", "at least one id is needed to predict from")


def hidden_arguments() -> dict[str, Any]:
    """Return the arguments of the `generate` call above that it does not pass on to a custom loop.

    transformers hands the prompt to `streamer` and then drops it, and drops `assistant_model` and `synced_gpus`,
    without a word. They are found in the caller's frame, since there is no other way to honour or refuse them. Raises
    RequestError where `generate` itself, below whatever decorators it has, is not found or has no such arguments.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:  # decorators, partials and wrappers stand between
        frame = frame.f_back
    found = {} if frame is None else frame.f_locals
    if missing := sorted(HIDDEN_ARGUMENTS - found.keys()):
        message = (
            f"custom_generate=specdec_engine.generate did not find {', '.join(missing)} of the call of model.generate, "
            f"and would drop them without a word: transformers {transformers.__version__} calls it in a way that is "
            "not known here, or it was not called by model.generate; use specdec_engine.LLM(hf_model=model)"
        )
        raise RequestError(message)
    for name in ("assistant_model", "synced_gpus"):
        if found[name]:
            raise refusal(name, "one model decodes here, on one device")
    return {"streamer": found["streamer"]}


def sampling_of(
    config: GenerationConfig, prepared: Sequence[Any], prompt: Tensor, row: int, *, real: Tensor, max_tokens: int | None
) -> SamplingParams:
    """Return the parameters of one row.

    prepared  the processors that `generate` made and was given, in order
    prompt    [L] the row's ids as they were passed, padding included: processors see them as in `generate`
    row       the row's number in the batch
    real      [L] bool, which ids of the prompt are not padding
    """
    do_sample = bool(config.do_sample)
    own = [_for_row(processor, row) for processor in prepared]
    values, rest = _as_parameters(own, real) if do_sample else _penalty(own, real)
    values["temperature"] = values.get("temperature", 1.0) if do_sample else 0.0
    return SamplingParams(
        max_tokens=max_tokens,
        stop_token_ids=[int(i) for i in _flat(config._eos_token_tensor)],
        ignore_eos=True,  # the stop ids are those of the generation config, which may differ from the model's
        seed=int(torch.randint(2**63 - 1, ())) if do_sample else None,
        logits_processors=_row_processors(rest, prompt) or None,
        detokenize=False,
        **values,
    )


def split_criteria(prepared: Iterable[Any]) -> list[Any]:
    """Return the criteria that have to be asked: all but the length and the end-of-sequence ids of the config."""
    known = (criteria.MaxLengthCriteria, criteria.EosTokenCriteria)
    return [criterion for criterion in prepared if type(criterion) not in known]


def _flat(ids: Any) -> list[Any]:
    return [] if ids is None else ids.flatten().tolist()


def _penalty(prepared: Sequence[Any], real: Tensor) -> tuple[dict[str, Any], list[Any]]:
    """Take a repetition penalty that comes first, if it counts the ids that are no padding, and only these."""
    for first in prepared[:1]:
        if type(first) is processors.RepetitionPenaltyLogitsProcessor:
            ignored = first.prompt_ignore_length or 0
            if bool(real[ignored:].all()) and not bool(real[:ignored].any()):
                return {"repetition_penalty": first.penalty}, list(prepared[1:])
    return {}, list(prepared)


# The warpers that the sampler has as well, in the order in which `generate` applies them.
_WARPERS: Final[dict[type, str]] = {
    processors.TemperatureLogitsWarper: "temperature",
    processors.TopKLogitsWarper: "top_k",
    processors.TopPLogitsWarper: "top_p",
    processors.MinPLogitsWarper: "min_p",
}


def _as_parameters(prepared: Sequence[Any], real: Tensor) -> tuple[dict[str, Any], list[Any]]:
    """Take a penalty at the beginning and the warpers at the end, as far as the sampler does just the same."""
    values, rest = _penalty(prepared, real)
    first = len(rest)
    while first and type(rest[first - 1]) in _WARPERS:
        first -= 1
    tail = rest[first:]
    order = [list(_WARPERS).index(type(warper)) for warper in tail]
    warped = {_WARPERS[type(warper)]: getattr(warper, _WARPERS[type(warper)]) for warper in tail}
    usual = all(
        getattr(w, "filter_value", -math.inf) == -math.inf and getattr(w, "min_tokens_to_keep", 1) == 1 for w in tail
    )
    # The sampler has min_p before top_p, which together leave other ids; and no top_p of 0.
    if order != sorted(set(order)) or not usual or {"top_p", "min_p"} <= set(warped) or warped.get("top_p") == 0:
        return values, rest
    return {**values, **warped}, rest[:first]


def _row_processors(rest: Sequence[Any], prompt: Tensor) -> list[Any]:
    """Return processors for one row: transformers' in groups, objects of our own protocol as they are."""
    made: list[Any] = []
    for ours, group in groupby(rest, key=lambda processor: hasattr(processor, "apply")):
        chain = list(group)
        made += chain if ours else [RowProcessor(chain, prompt)]
    return made


def _for_row(processor: Any, row: int) -> Any:
    """Return what does for a batch of one row what a processor does for row number `row` of its batch."""
    if isinstance(processor, processors.SynthIDTextWatermarkLogitsProcessor):
        raise refusal("watermarking_config", "a SynthID watermark keeps a state, which drafts would disturb")
    if type(processor) is processors.PrefixConstrainedLogitsProcessor:
        allowed: Callable[[int, Tensor], list[int]] = processor._prefix_allowed_tokens_fn
        return processors.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), 1)
    if type(processor) is processors.RepetitionPenaltyLogitsProcessor:
        ignored = processor.prompt_ignore_length
        if isinstance(ignored, Tensor):  # one length for each row, from transformers 5.23 on
            return processors.RepetitionPenaltyLogitsProcessor(processor.penalty, int(ignored[row]))
    return processor


class RowProcessor:
    """transformers' processors for one row of a batch, which they see as a batch of one."""

    def __init__(self, chain: Sequence[Any], prompt: Tensor) -> None:
        """`prompt` [L] are the row's ids, padding included."""
        self._chain = processors.LogitsProcessorList(chain)
        self._prompt = prompt

    def __call__(self, output_ids: Sequence[int], logits: Tensor) -> Tensor:
        """Return processed logits [V] of the position after the prompt and `output_ids`."""
        emitted = torch.as_tensor(output_ids, dtype=self._prompt.dtype).to(self._prompt.device)
        ids = torch.cat([self._prompt, emitted]).unsqueeze(0)
        scores: Tensor = self._chain(ids, logits.unsqueeze(0).clone())
        return scores[0]
