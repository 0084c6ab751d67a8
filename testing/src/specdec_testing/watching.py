"""Compares every draft that a method made of the target's states with another account of it; knows no method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.host.factory import make_proposer
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetHandle, TargetInfo
from specdec_testing.contract import script_batch
from specdec_testing.driving import Driver
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import engine

Built = tuple[Any, ResolvedConfig, FakeTarget]  # a proposer, its configuration and its target


def over(model: PreTrainedModel, **defaults: Any) -> tuple[Callable[..., ResolvedConfig], Callable[..., Built]]:
    """Return `resolve_config` and `built` with a tiny target filled in, unless `info` or `target` is given.

    The second one also returns the target, as `driven` takes all three. `defaults` are keys of the configuration that
    a call may override, with None to leave one out: `method` among them spares each call the detection of it, which
    asks all plugins in a child process.
    """
    own = FakeTarget(model)

    def resolve_over(source: str | None, info: TargetInfo = own.info, **keys: Any) -> ResolvedConfig:
        return resolve_config(source, info, **{**defaults, **keys})

    def built_over(
        source: str, target: FakeTarget | None = None, **keys: Any
    ) -> tuple[Any, ResolvedConfig, FakeTarget]:
        handle = target or FakeTarget(model)
        return (*built(source, handle, **{**defaults, **keys}), handle)

    return resolve_over, built_over


def resolve_config(model: str | None, info: TargetInfo, **keys: Any) -> ResolvedConfig:
    """Resolve a configuration with what is installed; a key that is None is left out."""
    return resolve(_given(model, keys), info, Registry(Catalog.discover()))


def built(model: str, target: TargetHandle, **keys: Any) -> tuple[Any, ResolvedConfig]:
    """Resolve and build; return the proposer and its configuration. A key that is None is left out."""
    registry = Registry(Catalog.discover())
    resolved = resolve(_given(model, keys), target.info, registry)
    return make_proposer(resolved, target, registry), resolved


def _given(model: str | None, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {"model": model, **keys}.items() if value is not None}


@dataclass
class Row:
    """What one request got in one call.

    text         the ids so far
    state        [H] the target's last state, or several side by side where the method reads those of layers
    states       [m, H] all states that the method was given of the request since it started, the last one included
    positions    their positions
    limit        the most drafts
    tokens, parents, distributions, distribution_rows  the drafts
    temperature  of the request
    """

    text: list[int]
    state: Tensor
    states: Tensor
    positions: list[int]
    limit: int
    tokens: list[int]
    parents: list[int]
    distributions: Tensor | None
    distribution_rows: list[int]
    temperature: float


@dataclass
class Watch:
    """A proposer that keeps what it sees of another one."""

    inner: Any
    rows: list[Row] = field(default_factory=list)
    widest: int = 0
    _given: dict[str, list[tuple[int, Tensor]]] = field(default_factory=dict)

    def start(self, request: RequestView) -> None:
        """Pass it on."""
        self._given[request.id] = []
        self.inner.start(request)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Pass it on."""
        self.inner.finish(request, reason)

    def close(self) -> None:
        """Pass it on."""
        self.inner.close()

    def propose(self, batch: BatchView) -> Draft:
        """Keep what the other one made of the batch."""
        assert batch.rows is not None
        given = batch.rows.hidden
        if given is None:
            assert batch.rows.aux is not None
            given = batch.rows.aux.flatten(1)
        for row, (owner, position) in enumerate(zip(batch.rows.request, batch.rows.positions, strict=True)):
            self._given[batch.request(int(owner)).id].append((int(position), given[row].clone()))
        draft: Draft = self.inner.propose(batch)
        ends = np.cumsum([0, *(draft.lengths or ())])
        self.widest = max(self.widest, sum(length > 0 for length in draft.lengths or ()))
        for i, limit in enumerate(batch.max_draft.tolist()):
            own = slice(int(ends[i]), int(ends[i + 1]))
            mine = self._given[batch.request(i).id]
            if not limit:
                assert own.start == own.stop, "a row that may not draft is empty"
                continue
            assert mine[-1][0] == batch.run_len[i] - 1
            size = own.stop - own.start
            self.rows.append(
                Row(
                    text=batch.request(i).tokens.tolist(),
                    state=mine[-1][1],
                    states=torch.stack([state for _, state in mine]),
                    positions=[position for position, _ in mine],
                    limit=limit,
                    tokens=draft.tokens[own].tolist(),
                    parents=list(range(-1, size - 1)) if draft.parents is None else draft.parents[own].tolist(),
                    distributions=draft.q,
                    distribution_rows=[-1] * size if draft.q_row is None else draft.q_row[own].tolist(),
                    temperature=float(batch.request(i).sampling_params.temperature),
                )
            )
        return draft


def driven(
    proposer: Any, resolved: ResolvedConfig, target: FakeTarget, *, seeds: int = 2, least: int = 50, gaps: bool = False
) -> Watch:
    """Run a proposer through the lives of some requests, whose drafts are accepted in part; return what was seen.

    At least `least` proposals are seen. With `gaps` rows are lost, speculation pauses, and requests are preempted.
    """
    watch = Watch(proposer)
    driver = Driver(watch, resolved.traits, target)
    for seed in range(seeds):
        scripts = script_batch(10, seed, target.info.vocab_size, resolved.num_speculative_tokens)
        if gaps:
            off = frozenset({1, 2})
            scripts = [replace(script, skip=3 * (i % 2), off=off, preempt=3) for i, script in enumerate(scripts)]
        driver.run(scripts)
    assert driver.problems == []
    assert len(watch.rows) > least
    assert watch.widest > 4
    return watch


def watched(llm: Any) -> Watch:
    """Put a watch around the proposer of the reference engine."""
    runner = llm._engine.runner
    watch = Watch(runner._proposer)
    runner._proposer = watch
    return watch


def said(
    llm: Any, texts: Sequence[Sequence[int]], temperatures: Sequence[float] = (0.0,)
) -> tuple[list[list[int]], list[Any]]:
    """Return whole texts of the reference engine, prompts included, and the results; temperatures take turns.

    Text i gets 8 (i + 1) new ids, and i for its seed.
    """
    make = engine().SamplingParams
    sampling = [
        make(temperature=temperatures[i % len(temperatures)], max_tokens=8 * (i + 1), ignore_eos=True, seed=i)
        for i in range(len(texts))
    ]
    results = llm.generate([{"prompt_token_ids": list(ids)} for ids in texts], sampling)
    return [[*ids, *result.outputs[0].token_ids] for ids, result in zip(texts, results, strict=True)], results


def assert_all_are(rows: Sequence[Row], account: Callable[[Row], Any], clear: float = 1e-3) -> None:
    """Compare every row with an account of it, which must rest on clear choices."""
    margin = math.inf
    for row in rows:
        nodes = account(row)
        assert (row.tokens, row.parents) == (nodes.tokens, nodes.parents)
        margin = min(margin, nodes.margin)
    assert margin > clear


def evidence(resolved: ResolvedConfig, key: str = "method") -> str:
    """Return the reason of a decision."""
    reasons: Mapping[str, str] = {decision.key: decision.reason for decision in resolved.decisions}
    return reasons[key]
