"""Texts that share prefixes, conversations over them, and a watch over which pages of the arena a step may touch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from runs import VOCAB, prompts

from specdec_engine import LLM
from specdec_testing.stubs import Stub, stub_plugin


def sharing(lengths: Sequence[int], shared: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Prompts of these lengths whose first `shared` ids are the same."""
    first = prompts((shared,), seed)[0]["prompt_token_ids"]
    own = prompts(lengths, seed + 1)
    return [{"prompt_token_ids": (first + text["prompt_token_ids"])[: len(text["prompt_token_ids"])]} for text in own]


def engine(model: Any, stub: Stub | None = None, k: int = 4, *, reuse: bool = True, **llm: Any) -> LLM:
    """An engine, with a stub proposer if one is given, that raises what goes wrong."""
    config, plugins = llm.pop("config", None), dict(llm.pop("plugins", {}))
    if stub is not None:
        plugins["stub"] = stub_plugin(stub)
        config = {"method": "stub", "num_speculative_tokens": k, **(config or {})}
    arguments = {"strict": True, "enable_prefix_caching": reuse, "kv_cache_tokens": 4096, **llm}
    return LLM(hf_model=model, speculative_config=config, plugins=plugins, **arguments)


def talk(llm: LLM, texts: Sequence[Any], sampling: Any) -> list[Any]:
    """Three rounds: the texts, the texts with their answers and a question more, and all of these once again."""
    results = llm.generate(texts, sampling)
    longer = [
        {"prompt_token_ids": [*text["prompt_token_ids"], *result.outputs[0].token_ids, 5, 9, 3 + i]}
        for i, (text, result) in enumerate(zip(texts, results, strict=True))
    ]
    results += llm.generate(longer, sampling)
    results += llm.generate([*texts, *longer], [*sampling, *sampling])
    llm._engine.target.arena.check_integrity([])
    return results


def told(results: Sequence[Any]) -> list[Any]:
    """All that a caller learns of the samples."""
    return [
        [(s.token_ids, s.finish_reason, s.cumulative_logprob, s.logprobs) for s in result.outputs] for result in results
    ]


class Watch:
    """What ran, and that pages were left alone; see `watched`.

    rows  (request id, first position, count) of all that ran in prompt chunks
    """

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []
        self.shared = 0

    def run_of(self, name: str) -> int:
        """How many rows of a request's prompt ran."""
        return sum(count for request, _, count in self.rows if request == name)


@contextmanager
def watched(llm: LLM) -> Any:
    """Before each forward, fill all that no request of it holds with NaN; afterwards see that no fixed page changed.

    Pages that are published and not held by these requests are hidden as well, and put back afterwards: whoever reads
    or writes one of them is found out.
    """
    target, watch = llm._engine.target, Watch()
    forward = target.forward

    def run(items: Any, drafts: Any = None) -> Any:
        arena = target.arena
        arena.check_integrity([request.segment for request in llm._engine.scheduler.running])
        held = {page for item in items for page in item.request.segment.pages}
        fixed = {p for item in items for p in item.request.segment.pages[: item.request.segment.fixed]}
        others = sorted(set(range(arena.num_pages)) - held)
        watch.shared += sum(count > 1 for count in arena._holders)
        watch.rows += [(item.request.id, item.start, len(item.ids)) for item in items if item.prompt]
        pages = [pages for pair in arena._layers.values() for pages in pair]
        with torch.inference_mode():
            before = [p.clone() for p in pages]
            for p in pages:
                p[others] = torch.nan
        out = forward(items, drafts)
        with torch.inference_mode():
            for p, old in zip(pages, before, strict=True):
                assert p[others].isnan().all(), "a page of somebody else was written"
                assert torch.equal(p[sorted(fixed)], old[sorted(fixed)]), "a page that may be shared was written"
                p[others] = old[others]
        return out

    target.forward = run  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        del target.forward


__all__ = ["VOCAB", "Watch", "engine", "sharing", "talk", "told", "watched"]
