"""From a checkpoint to a drafter: loads the model, tries it, compares tokenizers, wires the parts; no drafting here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specdec_core.config.remote_code import DRAFT_PERMISSION
from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.protocols import Proposer
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import DraftSource, TargetHandle, TargetInfo
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.fused.trial import fuse
from specdec_nn.hf.families import check_config
from specdec_nn.hf.loading import ModelSource, eos_ids, load_config, load_model
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import probe
from specdec_nn.hf.tokenizers import load_tokenizer
from specdec_plugin_draft_model.bridge import Bridge
from specdec_plugin_draft_model.detection import mask_token
from specdec_plugin_draft_model.drafter import DraftModel
from specdec_plugin_draft_model.options import DraftModelOptions
from specdec_plugin_draft_model.quantising import quantization_config
from specdec_plugin_draft_model.running import Runner
from specdec_plugin_draft_model.text_drafter import TextDraftModel
from specdec_plugin_draft_model.traits import is_parallel, is_text_level, quantization_of
from specdec_plugin_draft_model.vocabulary import Vocabulary, intersection, need_both, same_ids

TEXT_ROOM = 4  # ids of a drafter with another tokenizer that there is room for, for each of the target's


def make(ctx: MethodContext[DraftModelOptions], build: ProposerBuild) -> Proposer:
    """Build the proposer.

    Raises ConfigError for tokenizers that do not fit, and TargetError for a model that cannot be loaded or run here.
    """
    options, draft, target, kernels = ctx.options, ctx.checkpoint, build.target, build.kernels
    source = replace(
        ModelSource.of(draft.model, draft.revision, options.trust_remote_code),
        permission=DRAFT_PERMISSION,
        code_revision=options.code_revision,
    )
    text_level, k = is_text_level(options), build.num_speculative_tokens
    end = (draft.max_model_len or target.info.max_model_len) if text_level else build.max_model_len
    hf_config = load_config(source)
    info = TargetInfo.from_config(draft.model, hf_config.to_dict(), max_model_len=end)
    check_config(hf_config, end)
    mask = mask_token(draft.hf_config) if is_parallel(options, draft) else None
    tokenizer = load_tokenizer(source)
    if text_level:
        need_both(target.tokenizer, tokenizer)
        vocabulary = None
    else:
        vocabulary = _vocabulary(options, target, tokenizer, info.vocab_size)
    flat = _load(source, options, draft, target, info, kernels)
    most = min(target.max_num_seqs * end, target.kv_cache_tokens * (TEXT_ROOM if text_level else 1))
    cache = DraftCache(flat.new_arena(DraftCache.room(most, target.max_num_seqs, k)))
    runner = Runner(flat, cache, mask or 0)
    if vocabulary is None:
        bridge = Bridge(target.tokenizer, tokenizer, target.info.vocab_size, info.vocab_size)
        return TextDraftModel(
            runner, bridge, end, eos_ids(flat.model, tokenizer), threshold=options.draft_confidence_threshold
        )
    sampler = DraftSampler.of(build)
    threshold = options.draft_confidence_threshold
    return DraftModel(runner, vocabulary, sampler, end, parallel=mask is not None, threshold=threshold)


def _vocabulary(options: DraftModelOptions, target: TargetHandle, tokenizer: Any | None, draft_size: int) -> Vocabulary:
    compare = intersection if options.use_heterogeneous_vocab else same_ids
    return compare(target.tokenizer, tokenizer, target.info.vocab_size, draft_size, target.device)


def _load(
    source: ModelSource,
    options: DraftModelOptions,
    draft: DraftSource,
    target: TargetHandle,
    info: TargetInfo,
    kernels: Kernels,
) -> FlatModel:
    """Load the model in the target's dtype and on its device, and try it."""
    plain = quantization_of(draft.hf_config) is None
    quantization = quantization_config(options.quantization) if options.quantization and plain else None
    model = load_model(source, target.dtype, target.device, quantization)
    flat = FlatModel(model, info.num_layers, info.vocab_size, kernels)
    probe(flat)
    fuse(flat)
    return flat
