"""The engine of a collection: the target with a keeper of its states, and memory for all requests that run together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from specdec_engine import LLM
from specdec_engine.bench.arms import ModelOptions
from specdec_nn.hf.loading import eos_ids
from specdec_train.collect.settings import Settings
from specdec_train.collect.states import StateKeeper, StatesPlugin

SLACK: Final = 64  # positions of a request beyond what it needs: a page begun


@contextmanager
def engine(options: ModelOptions, settings: Settings, **more: Any) -> Iterator[tuple[LLM, StateKeeper, frozenset[int]]]:
    """Yield an engine, what keeps its states, and the ids that end a text; closed afterwards.

    No request ever gives its place back, and none takes rows over from another: what is computed for a shard depends
    on the requests of the shard alone.
    """
    keeper = StateKeeper(settings.aux_layers)
    with LLM(
        options.model,
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        max_model_len=settings.context,
        max_num_seqs=settings.together,
        kv_cache_tokens=settings.together * (settings.context + SLACK),
        enable_prefix_caching=False,
        disable_log_stats=True,
        strict=True,
        **StatesPlugin(keeper).arguments,
        **more,
    ) as llm:
        yield llm, keeper, eos_ids(llm.model, llm.tokenizer)
