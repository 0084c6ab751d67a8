"""`model.generate(..., custom_generate=specdec_engine.generate)`: the engine behind transformers' own call.

`generate` prepares everything (configuration, processors, criteria, copies of rows) and then calls the function here
instead of its loop. What arrives is checked first; each row becomes a request of the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specdec_core.errors import RequestError
from specdec_engine.hf_generate.arguments import (
    check_config,
    check_model_kwargs,
    hidden_arguments,
    refusal,
    sampling_of,
    split_criteria,
)
from specdec_engine.hf_generate.kept_engine import KeptEngine, engine_for
from specdec_engine.sampling_params import SamplingParams
from specdec_nn.cache.arena import PAGE_SIZE

logger = logging.getLogger("specdec_engine")


@dataclass(slots=True)
class Row:
    """One row of the batch: its ids as passed [L], without padding, and what it has emitted."""

    padded: Tensor
    ids: list[int]
    emitted: list[int] = field(default_factory=list)
    stopped: bool = False


def generate(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    generation_config: GenerationConfig | None = None,
    speculative_config: Any = None,
    plugins: Mapping[str, Any] | None = None,
    engine_args: Mapping[str, Any] | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode as `model.generate` does, with speculation; for `custom_generate=`, not to be called by itself.

    speculative_config, plugins  as for `LLM`; None decodes plainly
    engine_args                  other parameters of `LLM`: max_model_len, max_num_seqs, kv_cache_tokens, decode_width,
                                 prefill_chunk_size, strict, fused, disable_log_stats

    Returns [B, L + new] ids, padded as `generate` pads, or `GenerateDecoderOnlyOutput` with `sequences`. Greedy ids are
    those of `generate`. Sampled ones follow the same distribution, with noise of their own whose key is drawn from
    torch's global generator, so that `torch.manual_seed` fixes them. Raises RequestError, naming the argument, for what
    cannot be honoured, and what `LLM` raises; nothing has run then.
    """
    if generation_config is None:
        message = "specdec_engine.generate is called by transformers: model.generate(..., custom_generate=generate)"
        raise RequestError(message)
    streamer = hidden_arguments()["streamer"]
    check_config(generation_config)
    check_model_kwargs(model_kwargs, input_ids)
    if streamer is not None and len(input_ids) > 1:
        raise refusal(f"streamer for {len(input_ids)} rows", "one prompt is streamed at a time")
    mask = _mask(model_kwargs, input_ids)
    rows = [Row(ids, ids[keep].tolist()) for ids, keep in zip(input_ids, mask, strict=True)]
    criteria = split_criteria(stopping_criteria)
    max_new = None if generation_config.max_length is None else generation_config.max_length - input_ids.shape[1]
    params = [
        sampling_of(generation_config, logits_processor, row.padded, i, real=mask[i], max_tokens=max_new)
        for i, row in enumerate(rows)
    ]
    with engine_for(model, speculative_config, plugins, engine_args) as kept:
        _resume(kept, rows, max_new)
        pad = _pad(generation_config, kept, rows, criteria, max_new)
        _decode(kept, rows, params, criteria, streamer)
    sequences = _sequences(input_ids, rows, pad)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def _mask(kwargs: Mapping[str, Any], input_ids: Tensor) -> Tensor:
    """Return which ids are real, [B, L] bool; positions must count them from 0, as they do here."""
    given = kwargs.get("attention_mask")  # None where it is all ones
    mask = torch.ones_like(input_ids, dtype=torch.bool) if given is None else given != 0
    if mask.shape != input_ids.shape:
        message = f"generate's attention_mask has shape {tuple(mask.shape)}, where {tuple(input_ids.shape)} is expected"
        raise RequestError(message)
    if not bool(mask.any(dim=1).all()):
        message = f"row {int((~mask.any(dim=1)).nonzero()[0])} of input_ids is all padding; at least one id is needed"
        raise RequestError(message)
    positions = kwargs.get("position_ids")
    if positions is not None:
        counted = mask.long().cumsum(dim=1) - 1
        same = positions.expand(counted.shape)[mask] == counted[mask] if positions.ndim == 2 else None
        if same is None or not bool(same.all()):
            raise refusal("position_ids", "positions are counted from 0, padding left out")
    return mask


def _resume(kept: KeptEngine, rows: Sequence[Row], max_new: int | None) -> None:
    """Give the engine KV memory for these rows, or as much of it as there is."""
    assert kept.llm is not None
    llm = kept.llm
    room = 1 + (0 if llm.resolved_config is None else llm.resolved_config.num_speculative_tokens)
    lengths = [llm.max_model_len if max_new is None else min(len(r.ids) + max_new, llm.max_model_len) for r in rows]
    pages = sorted((-(-(length + room) // PAGE_SIZE) for length in lengths), reverse=True)
    llm.resume(min(kept.most_kv_tokens, PAGE_SIZE * sum(pages[: llm.max_num_seqs])))


def _pad(
    config: GenerationConfig, kept: KeptEngine, rows: Sequence[Row], criteria: Sequence[Any], max_new: int | None
) -> int:
    """Return the id that fills rows which end early; refuse before anything runs if one is needed and there is none."""
    assert kept.llm is not None
    longest = max(len(row.ids) for row in rows)
    limit = kept.llm.max_model_len
    cut = max_new is None or longest + max_new > limit
    if cut and max_new is not None:
        message = "a row of %d ids may emit %d at most, not %d: the model ends at %d positions"
        logger.warning(message, longest, limit - longest, max_new, limit)
    pad = config._pad_token_tensor
    if pad is not None:
        return int(pad)
    if len(rows) > 1 and (criteria or cut):
        message = "rows may end at different lengths, and there is no id to fill them with; pass pad_token_id"
        raise RequestError(message)
    return 0  # all rows end at max_length


def _decode(
    kept: KeptEngine, rows: Sequence[Row], params: Sequence[SamplingParams], criteria: Sequence[Any], streamer: Any
) -> None:
    """Run all rows to their ends; criteria are asked after every id of a row, as if ids came one by one."""
    assert kept.llm is not None
    with kept.llm.start([{"prompt_token_ids": row.ids} for row in rows], list(params)) as run:
        for index, new in run.gains():
            row = rows[index]
            for token in new:
                row.emitted.append(token)
                if streamer is not None:
                    streamer.put(torch.tensor([token]))
                if criteria and _stops(row, criteria):
                    row.stopped = True
                    run.abort(index)
                    break
        for index, group in enumerate(run.groups):
            if group.requests[0].error is not None:
                message = f"row {index} of generate's batch cannot go on: {group.requests[0].error}"
                raise RequestError(message)
    if streamer is not None:
        streamer.end()


def _stops(row: Row, criteria: Sequence[Any]) -> bool:
    emitted = torch.tensor(row.emitted, dtype=row.padded.dtype, device=row.padded.device)
    ids = torch.cat([row.padded, emitted]).unsqueeze(0)
    # All of them, since some count how often they are asked.
    return any([bool(torch.as_tensor(criterion(ids, None)).any()) for criterion in criteria])


def _sequences(input_ids: Tensor, rows: Sequence[Row], pad: int) -> Tensor:
    width = max(len(row.emitted) for row in rows)
    emitted = input_ids.new_full((len(rows), width), pad)
    for line, row in zip(emitted, rows, strict=True):
        line[: len(row.emitted)] = input_ids.new_tensor(row.emitted)
    return torch.cat([input_ids, emitted], dim=1)
