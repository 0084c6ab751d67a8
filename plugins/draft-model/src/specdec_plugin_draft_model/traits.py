"""What a configured draft model needs and gives, and what is wrong with it; reads config.json and loads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdec_core.config.remote_code import DRAFT_PERMISSION, code_of_model
from specdec_core.config.rope import model_rope_problem
from specdec_core.context import MethodContext
from specdec_core.errors import ConfigError, TargetError
from specdec_core.sources import DraftSource, Problem, TargetInfo, language_config
from specdec_core.traits import MethodTraits
from specdec_nn.hf.families import data_problem
from specdec_plugin_draft_model.detection import PARD_TOKEN, is_pard, mask_token, other_kind
from specdec_plugin_draft_model.options import DraftModelOptions
from specdec_plugin_draft_model.quantising import AS_IT_IS, quantization_config
from specdec_plugin_draft_model.tokenizer_files import OTHER_TOKENIZERS, difference


def is_parallel(options: DraftModelOptions, draft: DraftSource) -> bool:
    """Return whether all tokens are drafted in one pass."""
    if options.parallel_drafting is None:
        return is_pard(draft.hf_config) and not is_text_level(options)
    return options.parallel_drafting


def is_text_level(options: DraftModelOptions) -> bool:
    """Return whether texts, and not ids, go from target to drafter and back."""
    return options.use_heterogeneous_vocab and options.heterogeneous_vocab_method == "text"


def traits_of(ctx: MethodContext[DraftModelOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    options, draft = ctx.options, ctx.draft
    parallel = draft is not None and is_parallel(options, draft)
    text_level = is_text_level(options)
    return MethodTraits(
        rows="none",
        draft_distribution="soft" if ctx.samples_drafts else "deterministic",
        shares_noise=ctx.shares_noise,
        weights="own",
        vocabulary="subset" if options.use_heterogeneous_vocab else "target",
        # On the level of texts the drafter's positions are not the host's: it counts them by itself.
        max_position=None if draft is None or text_level else draft.max_model_len,
        when_off="catch_up",
        # The newest id is a row of the drafter's before it is one of the target's; a parallel pass adds its masks.
        extra_slots=(ctx.config.num_speculative_tokens or 1) if parallel else 1,
    )


def problems_of(ctx: MethodContext[DraftModelOptions]) -> Sequence[Problem]:
    """Return everything that is wrong."""
    options, draft = ctx.options, ctx.checkpoint
    return [
        *_checkpoint_problems(ctx),
        *_code_problems(options, draft),
        *_parallel_problems(options, draft),
        *_quantization_problems(options, draft),
        *_option_problems(ctx),
    ]


def _checkpoint_problems(ctx: MethodContext[DraftModelOptions]) -> Iterator[Problem]:
    options, draft, target = ctx.options, ctx.checkpoint, ctx.target
    other = other_kind(draft)
    if other is not None:
        message = f"{draft.model!r} is another kind of drafter ({other}), not a language model of its own"
        yield Problem(key="model", message=message, next_step="name its own method, or give a whole language model")
        return
    rope = model_rope_problem(language_config(draft.hf_config))
    if rope is not None and not options.trust_remote_code:
        message = f"{draft.model!r} cannot be built: {rope}"
        yield Problem(key="model", message=message, next_step="give a model whose positions are of a known type")
    try:
        info = TargetInfo.from_config(draft.model, draft.hf_config, max_model_len=1)
    except TargetError as error:
        yield Problem(key="model", message=str(error), next_step="give a whole language model")
        return
    own = draft.max_model_len or target.max_model_len
    # A drafter of texts holds as many ids of its own as it can, whatever the target's limit.
    end = own if is_text_level(options) else min(own, target.max_model_len, ctx.config.max_model_len or own)
    family = data_problem(language_config(draft.hf_config), end)
    if family is not None:
        message = f"{draft.model!r} cannot draft here: {family}"
        yield Problem(key="model", message=message, drafter_only=True)
    if not options.use_heterogeneous_vocab and (differs := difference(draft, info.vocab_size, target)):
        yield Problem(key="model", message=differs, next_step=OTHER_TOKENIZERS)
    mask = mask_token(draft.hf_config) if is_parallel(options, draft) else None
    if mask is not None and mask >= info.vocab_size:
        message = f"{PARD_TOKEN} {mask} of {draft.model!r} is none of its {info.vocab_size} ids"
        yield Problem(key="model", message=message, next_step="correct its config.json")


def _code_problems(options: DraftModelOptions, draft: DraftSource) -> Iterator[Problem]:
    code = None if options.trust_remote_code else code_of_model(draft.hf_config)
    if code is not None:  # a host that has draft models by itself has its own permission
        yield Problem(key="trust_remote_code", message=code.message(draft.model, DRAFT_PERMISSION), drafter_only=True)


def _parallel_problems(options: DraftModelOptions, draft: DraftSource) -> Iterator[Problem]:
    if not is_parallel(options, draft):
        return
    if mask_token(draft.hf_config) is None:
        message = f"config.json of {draft.model!r} names no mask token ({PARD_TOKEN}), so it drafts one by one"
        yield Problem(key="parallel_drafting", message=message, next_step="leave it out, or give a PARD checkpoint")
    if is_text_level(options):
        message = "texts are drafted token by token"
        step = 'leave it out, or use heterogeneous_vocab_method "token"'
        yield Problem(key="parallel_drafting", message=message, next_step=step)


def _quantization_problems(options: DraftModelOptions, draft: DraftSource) -> Iterator[Problem]:
    own = quantization_of(draft.hf_config)
    if options.quantization is not None and own is not None and options.quantization != own:
        message = f"{options.quantization!r} given, and the checkpoint is quantised by {own!r} already"
        yield Problem(key="quantization", message=message, next_step="leave it out")
    elif options.quantization is not None and own is None:
        try:
            quantization_config(options.quantization)
        except ConfigError as error:
            yield Problem(key="quantization", message=str(error), next_step=AS_IT_IS, drafter_only=True)


def quantization_of(config: Mapping[str, Any]) -> str | None:
    """Return by what a checkpoint is quantised, None if it is not."""
    said = config.get("quantization_config")
    return str(said.get("quant_method")) if isinstance(said, Mapping) else None


def _option_problems(ctx: MethodContext[DraftModelOptions]) -> Iterator[Problem]:
    options, size = ctx.options, ctx.config.draft_tensor_parallel_size
    if size is not None and size > 1:
        message = f"{size} given, and the drafter runs on one device here"
        step = "leave it out; vLLM spreads draft models over devices (its own method draft_model)"
        yield Problem(key="draft_tensor_parallel_size", message=message, next_step=step)
    if "heterogeneous_vocab_method" in options.model_fields_set and not options.use_heterogeneous_vocab:
        message = "it says how to map tokenizers that differ, and use_heterogeneous_vocab is not set"
        step = "set use_heterogeneous_vocab to true, or leave it out"
        yield Problem(key="heterogeneous_vocab_method", message=message, next_step=step)
    if is_text_level(options) and ctx.samples_drafts:
        message = "drafts on the level of texts have no distribution over the target's ids"
        step = 'use greedy, or heterogeneous_vocab_method "token"'
        yield Problem(key="draft_sample_method", message=message, next_step=step)
    if options.code_revision is not None and not options.trust_remote_code:
        message = "no code of a checkpoint is run unless trust_remote_code is true"
        yield Problem(key="code_revision", message=message, next_step="set trust_remote_code, or leave it out")
