"""A short run of a pair, as configured and with what the drafter is given shifted, to see which accepts more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor

from specdec_core.draft import Draft
from specdec_core.host.requests import HostRequest, Slot
from specdec_core.host.runner import ProposerRunner
from specdec_engine.llm import LLM
from specdec_engine.sampling_params import SamplingParams

OFFSETS: Final = (-1, 0, 1)
AS_CONFIGURED: Final = "as configured"
EARLIER: Final = "states of the position before"
REPEATED: Final = 5  # ids that have to be drafted more than once to tell whether they stand for others


@dataclass(frozen=True)
class Tried:
    """What one variant of a run gave.

    name     what was shifted
    layers   aux layers that were read, if that is what was shifted
    first    share of first drafts of a step that were accepted, None where there was none
    drafted, accepted  drafts verified and accepted
    offsets  share of first drafts that are the text's id one position earlier, at their own, and one later
    constant share of first drafts that are one and the same id
    favourite  that id
    renamed  share of first drafts that would be right under one renaming of ids, None where it cannot be told
    example  a drafted id and the text's id that it would be renamed to
    """

    name: str
    layers: tuple[int, ...] | None
    first: float | None
    drafted: int
    accepted: int
    offsets: tuple[float, ...] = ()
    constant: float = 0.0
    favourite: int = -1
    renamed: float | None = None
    example: tuple[int, int] | None = None


class _Watched:
    """A runner whose first drafts are kept, and whose committed states may be those of the position before."""

    def __init__(self, runner: ProposerRunner, *, earlier: bool) -> None:
        self._runner, self._earlier = runner, earlier
        self._last: dict[str, tuple[Tensor | None, Tensor | None]] = {}
        self.first: list[tuple[HostRequest, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def propose(self, slots: Sequence[Slot], batch_size: int | None = None) -> Draft:
        draft = self._runner.propose(slots, batch_size)
        at = 0
        for slot, length in zip(slots, draft.lengths or (), strict=True):
            if length:
                self.first.append((slot.request, len(slot.request), int(draft.tokens[at])))
            at += length
        return draft

    def commit(
        self, request: HostRequest, start: int, count: int, hidden: Tensor | None = None, aux: Tensor | None = None
    ) -> None:
        if self._earlier and count:
            before = self._last.get(request.id, (None, None))
            # mypy knows no length of a tuple that is made of a generator.
            self._last[request.id] = tuple(None if part is None else part[-1:].clone() for part in (hidden, aux))  # type: ignore[assignment]
            hidden, aux = (_earlier(part, row) for part, row in zip((hidden, aux), before, strict=True))
        self._runner.commit(request, start, count, hidden, aux)


def _earlier(states: Tensor | None, before: Tensor | None) -> Tensor | None:
    """Return states [n, ...] each of the row before; the first one is `before`, or itself where there is none."""
    if states is None:
        return None
    return torch.cat([states[:1] if before is None else before, states[:-1]])


def probe(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> Iterator[Tried]:
    """Yield what the pair gives as configured, and then with each shift that its traits make possible.

    Aux layers are read one lower and one higher, which is no more than another tap of the same forward; hidden states
    are handed over one position late.
    """
    resolved = llm.resolved_config
    assert resolved is not None
    traits = resolved.traits
    yield _run(llm, prompts, max_tokens, AS_CONFIGURED)
    target = llm._engine.target
    for shift in (-1, 1) if traits.aux_layers else ():
        layers = tuple(layer + shift for layer in traits.aux_layers)
        if 0 <= min(layers) and max(layers) <= target.info.num_layers:
            try:
                target.tap(hidden=traits.hidden, aux_layers=layers)
                yield _run(llm, prompts, max_tokens, f"aux layers {shift:+d}", layers)
            finally:
                target.tap(hidden=traits.hidden, aux_layers=traits.aux_layers)
    if traits.hidden or traits.aux_layers:
        yield _run(llm, prompts, max_tokens, EARLIER)


def _run(
    llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int, name: str, layers: tuple[int, ...] | None = None
) -> Tried:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, detokenize=False)
    with _watching(llm, earlier=name == EARLIER) as watched:
        outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)
    drafts = sum(each.drafted_per_pos[0] for output in outputs if (each := output.metrics).drafted)
    good = sum(each.accepted_per_pos[0] for output in outputs if (each := output.metrics).drafted)
    drafted, accepted = (sum(getattr(o.metrics, key) for o in outputs) for key in ("drafted", "accepted"))
    if not drafts:
        return Tried(name, layers, None, 0, 0)
    favourite, times = Counter(token for _, _, token in watched.first).most_common(1)[0]
    offsets = tuple(_share(watched.first, offset) for offset in OFFSETS)
    renamed, example = _renamed(watched.first)
    return Tried(
        name, layers, good / drafts, drafted, accepted, offsets, times / len(watched.first), favourite, renamed, example
    )


def _share(first: Sequence[tuple[HostRequest, int, int]], offset: int) -> float:
    """Return the share of first drafts that are the id at their position + offset of the finished text."""
    seen = [(request, place + offset, token) for request, place, token in first if place + offset < len(request)]
    return sum(int(request.tokens[place]) == token for request, place, token in seen) / max(len(seen), 1)


def _renamed(first: Sequence[tuple[HostRequest, int, int]]) -> tuple[float | None, tuple[int, int] | None]:
    """Return the share of first drafts that would be right if each drafted id stood for one of the text, no two alike.

    Ids that were drafted once say nothing; with fewer than REPEATED others it cannot be told.
    """
    pairs = Counter((token, int(request.tokens[place])) for request, place, token in first if place < len(request))
    times: Counter[int] = Counter()
    for (token, _), count in pairs.items():
        times[token] += count
    often = [token for token, count in times.items() if count > 1]
    if len(often) < REPEATED:
        return None, None
    right, taken, example = 0, set[int](), None
    for (token, meant), count in pairs.most_common():
        if token in often and meant not in taken:
            often.remove(token)
            taken.add(meant)
            right += count
            example = example or ((token, meant) if token != meant else None)
    return right / sum(count for count in times.values() if count > 1), example


@contextmanager
def _watching(llm: LLM, *, earlier: bool) -> Iterator[_Watched]:
    speculation = llm._engine.stepper.speculation
    assert speculation is not None
    runner = speculation.runner
    watched = _Watched(runner, earlier=earlier)
    speculation.runner = cast(ProposerRunner, watched)
    try:
        yield watched
    finally:
        speculation.runner = runner
