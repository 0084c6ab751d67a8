"""Every key of vLLM's speculative configuration, of today and of before, and ours: who acts on it, or why nobody does.

`null` counts as left out for every key. A key that the options of the selected method, verifier or controller declare
is theirs and is not looked up here. docs/configuration.md is written from this table by `specdec_core.config.key_docs`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from specdec_core.config.keys import COUNT, FLAG, TEXT, Common, Key, NoEffect, Old, Option, Refused

_WHOLE: Final = "whole number >= 1"
_INTERNAL: Final = Refused("it is internal to vLLM")
_LOOKUP: Final = "methods that look ids up in the text so far"
_TREES_OF_SUFFIXES: Final = "methods that keep trees of suffixes"
_MADE_UP: Final = "verifiers that make up acceptance (`synthetic`)"
_TYPICAL: Final = "verifiers of typical acceptance (`typical`)"
_LOOSE: Final = "verifiers that overrule rejections at undecided places (`fly`)"
_ACCEPTANCE: Final = Old(
    "rejection_sample_method", {"rejection_sampler": "standard", "typical_acceptance_sampler": "typical"}
)

_COMMON: Final[dict[str, Common]] = {
    "method": Common(
        "core",
        "name",
        "the method; `distribution:name` where two distributions claim one name. It may be left out if `model` is the "
        "name of a method, bare or in brackets (`[name]`), or a checkpoint that one installed method recognises best",
    ),
    "model": Common(
        "core",
        "folder, file, name of an installed draft, or hub id",
        "the draft checkpoint of a method that has one: a local path, else the draft of that name that a distribution "
        "brings ([drafts.md](drafts.md)), else a hub id; refused for a method that has none. Left out: what the method "
        "finds by itself, such as the target's own checkpoint",
    ),
    "revision": Common(
        "core",
        "text",
        "branch, tag or commit of the hub id in `model`; ignored with a warning where `model` is a local path or none",
    ),
    "num_speculative_tokens": Common(
        "host",
        _WHOLE,
        "k, the most tokens drafted for a request in a step; required, unless the method or the checkpoint has a "
        "default for it. Above the method's n_predict it must be a multiple of it, or is refused where its modules "
        "cannot be used again",
    ),
    "max_model_len": Common(
        "host",
        _WHOLE,
        "no draft is allowed at this position or beyond; at most the drafter's and the target's own limits. Left out: "
        "the smaller of these two",
    ),
    "draft_tensor_parallel_size": Common(
        "host",
        _WHOLE,
        "over how many devices the drafter is spread: 1 or as many as the target. Left out: as many as the target, "
        "unless the method needs 1. In the reference engine both are 1",
    ),
    "rejection_sample_method": Common(
        "core",
        "name",
        "the verifier. Left out: `coupled` for methods whose drafts are point masses or share the engine's noise, "
        "otherwise `standard`, of which `strict` and `probabilistic` are old names",
    ),
    "draft_sample_method": Common(
        "core",
        "`greedy` or `probabilistic`",
        "whether drafts are the drafter's most likely tokens or drawn from its distribution; refused if the method "
        "cannot do what it asks for",
    ),
    "num_speculative_tokens_per_batch_size": Common(
        "host",
        'list of `[start, end, K]`, or `{"start-end": K}`',
        "at a batch size from start to end (inclusive) at most K tokens are drafted a request, 0 = none. Ranges may "
        "not overlap, the smallest start is 1; sizes that no range covers keep the K of the range before. K above "
        "`num_speculative_tokens` counts as `num_speculative_tokens`",
    ),
    "disable_by_batch_size": Common("host", "whole number >= 2", "no drafting while more requests than this run"),
    "max_step_tokens": Common(
        "host",
        _WHOLE,
        "the most tokens drafted in one step over all requests; the longest drafts are cut first",
    ),
    "controller": Common(
        "host", "name", "the extension that chooses, within all other limits, how many tokens each request may get"
    ),
    "cut_by_cost": Common(
        "host",
        "`true` or `false`",
        "whether drafts are left out that cost more than they bring, by measured times; `false` verifies all. Left "
        "out: `true` in the reference engine where no controller is chosen, see "
        "[controllers.md](controllers.md#by-default)",
    ),
    "observers": Common(
        "host", "list of names", "extensions that are told what happens; see [hooks.md](hooks.md#observers)"
    ),
    "kernels": Common(
        "core",
        "list of distributions",
        "further distributions whose kernels may be used, besides the core's and those of the selected plugins",
    ),
}

_NO_EFFECT: Final[dict[str, NoEffect]] = {
    "enforce_eager": NoEffect(FLAG, "no drafter is captured as a graph, so each of them runs eagerly"),
    "disable_padded_drafter_batch": NoEffect(FLAG, "batches of drafters are never padded"),
    "disable_eagle_block_drop": NoEffect(
        FLAG, "no block of a prefix cache is dropped for a drafter; one that misses rows is told of the gap"
    ),
    "disable_lookahead_block_hashes": NoEffect(
        FLAG, "no prefix cache is shared with other engines, so no hash of a block covers tokens that a drafter reads"
    ),
    "use_local_argmax_reduction": NoEffect(
        FLAG,
        "it spares traffic between devices that share a vocabulary, and a drafter's is on one device",
        excludes={"draft_sample_method": "probabilistic", "use_heterogeneous_vocab": True},
    ),
    "code_revision": NoEffect(TEXT, "the selected method runs no code of a checkpoint"),
    "disable_mqa_scorer": NoEffect(FLAG, "drafts are scored in one way: in the target's own forward"),
    "disable_logprobs": NoEffect(
        FLAG, "log-probabilities are given to the requests that ask for them, with drafts too"
    ),
    "num_lookahead_slots": NoEffect(COUNT, "it is derived from the method and num_speculative_tokens"),
}

_OPTIONS: Final[dict[str, Option]] = {
    "prompt_lookup_max": Option("method", _LOOKUP),
    "prompt_lookup_min": Option("method", _LOOKUP),
    "suffix_decoding_max_tree_depth": Option("method", _TREES_OF_SUFFIXES),
    "suffix_decoding_max_cached_requests": Option("method", _TREES_OF_SUFFIXES),
    "suffix_decoding_max_spec_factor": Option("method", _TREES_OF_SUFFIXES),
    "suffix_decoding_min_token_prob": Option("method", _TREES_OF_SUFFIXES),
    "dspark_draft_topk": Option("method", "methods that draft blocks of tokens"),
    "index_share_for_mtp_iteration": Option("method", "methods whose drafter is in the target's checkpoint", (False,)),
    "trust_remote_code": Option("method", "methods whose drafter may bring code of its own", (False,)),
    "use_heterogeneous_vocab": Option("method", "methods whose drafter may have another tokenizer", (False,)),
    "parallel_drafting": Option("method", "methods that can draft all tokens in one pass", (False,)),
    "enable_adaptive_verification": Option("method", "methods whose drafts have a confidence", (False,)),
    "speculative_token_tree": Option("method", "methods that draft trees"),
    "synthetic_acceptance_rates": Option("verifier", _MADE_UP),
    "synthetic_acceptance_length": Option("verifier", _MADE_UP),
    "posterior_threshold": Option("verifier", _TYPICAL),
    "posterior_alpha": Option("verifier", _TYPICAL),
    "fly_window_size": Option("verifier", _LOOSE),
    "fly_entropy_threshold": Option("verifier", _LOOSE, (0.3,)),
    "fly_entropy_top_k": Option("verifier", _LOOSE, (3,)),
}

_REFUSED: Final[dict[str, Refused]] = {
    "tensor_parallel_size": Refused("it is the target's", step="use draft_tensor_parallel_size for the drafter's"),
    "quantization": Refused(
        "the selected method does not quantize its drafter", step="leave it out, and give an unquantized checkpoint"
    ),
    "draft_lm_head_quantization": Refused(
        "the copy of the target's output layer that a drafter shares is not quantized",
        step="leave it out: drafters share the target's own layer, in its own dtype",
    ),
    "xpress_topc": Refused(
        "it narrows the passes of an XPress refiner, and no method here builds that refiner",
        step="leave it out, and give a head without a refiner",
    ),
    "moe_backend": Refused("the drafter's experts run like the target's", ("auto",)),
    "attention_backend": Refused(
        "kernels are chosen by device",
        ("auto", "AUTO"),
        "leave it out, or set the environment variable SPECDEC_KERNELS",
    ),
    "kv_cache_dtype": Refused("the drafter's cache has the dtype of its weights", ("auto",)),
    "draft_load_config": Refused(
        "checkpoints are read in one way, from .safetensors, .bin or .pt", ({}, {"load_format": "auto"})
    ),
    "enable_chunked_prefill": Refused("it is the host's own parameter, and prompts always come in chunks", (True,)),
    "disable_log_stats": Refused("it is the host's own parameter", (True,)),
    "target_model_config": _INTERNAL,
    "target_parallel_config": _INTERNAL,
    "draft_model_config": _INTERNAL,
    "draft_parallel_config": _INTERNAL,
}

_OLD: Final[dict[str, Old]] = {
    "acceptance_method": _ACCEPTANCE,
    "spec_decoding_acceptance_method": _ACCEPTANCE,
    "typical_acceptance_sampler_posterior_threshold": Old("posterior_threshold"),
    "typical_acceptance_sampler_posterior_alpha": Old("posterior_alpha"),
    "ngram_prompt_lookup_max": Old("prompt_lookup_max"),
    "ngram_prompt_lookup_min": Old("prompt_lookup_min"),
    "speculative_method": Old("method"),
    "speculative_model": Old("model"),
    "speculative_model_quantization": Old("quantization"),
    "speculative_max_model_len": Old("max_model_len"),
    "speculative_draft_tensor_parallel_size": Old("draft_tensor_parallel_size"),
    "speculative_disable_by_batch_size": Old("disable_by_batch_size"),
    "speculative_disable_mqa_scorer": Old("disable_mqa_scorer"),
    "disable_logprobs_during_spec_decoding": Old("disable_logprobs"),
    "spec_method": Old("method"),
    "spec_model": Old("model"),
    "spec_tokens": Old("num_speculative_tokens"),
}

KEYS: Final[MappingProxyType[str, Key]] = MappingProxyType({**_COMMON, **_NO_EFFECT, **_OPTIONS, **_REFUSED, **_OLD})
