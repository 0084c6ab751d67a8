"""The proposer `combine`: leads its parts as a host would, and puts their drafts together row by row."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_core.draft import BatchView, Draft, FinishReason, IntArray, RequestView, Rows, VerifiedRows
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.host.verified import by_request
from specdec_core.protocols import Proposer, Remembers
from specdec_core.traits import MethodTraits
from specdec_plugin_combine import rules
from specdec_plugin_combine.drawn import Distributions
from specdec_plugin_combine.estimate import Estimate, depth_reached
from specdec_plugin_combine.requests import Followed, PartRequest, PartView
from specdec_plugin_combine.rules import EMPTY, PartRow
from specdec_plugin_combine.traits import draws_stay

if TYPE_CHECKING:
    from specdec_core.config.speculative import ResolvedConfig
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_plugin_combine.merging import MakeMerger
    from specdec_plugin_combine.options import CombineOptions

ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
TRIES = 2  # how often `learned` tries each part before it chooses,
AGAIN = 16  # and after how many drafts it tries another one again
COST = {"none": 0.0, "own": 0.15, "target": 0.15}  # of drafting, by a part's weights, in forwards of the target


@dataclass(slots=True)
class Part:
    """One method of a combination, and the seconds that it took."""

    traits: MethodTraits
    runner: ProposerRunner
    proposer: Proposer
    columns: list[int] | None  # of the aux states that the host delivers, those that this part reads
    k: int
    seconds: float = 0.0


def make(ctx: MethodContext[CombineOptions], build: ProposerBuild) -> CombineProposer:
    """Build the parts; if one cannot be built, those before it are closed and the error is raised."""
    parts: list[Part] = []
    try:
        for resolved in ctx.parts:
            parts.append(_part(resolved, ctx.target.vocab_size, build))
    except BaseException:
        for part in parts:
            part.runner.close()
        raise
    make_merger = build.kernels.get("draft_merge") if ctx.options.rule == "merge" else None
    return CombineProposer(parts, ctx.options.rule, build.traits, ctx.target.vocab_size, make_merger)


def _part(resolved: ResolvedConfig, vocab_size: int, build: ProposerBuild) -> Part:
    proposer = build.make(resolved)
    containment = Containment(f"combine: {resolved.method}", strict=build.strict)
    runner = ProposerRunner(proposer, resolved.traits, DraftBudget(resolved), vocab_size, containment)
    wanted, all_layers = resolved.traits.aux_layers, build.traits.aux_layers
    columns = [all_layers.index(layer) for layer in wanted] if wanted and wanted != all_layers else None
    return Part(resolved.traits, runner, proposer, columns, resolved.num_speculative_tokens)


class CombineProposer:
    """Drafts of several methods; a part that fails costs the step its own drafts and nothing else."""

    def __init__(
        self,
        parts: Sequence[Part],
        rule: str,
        traits: MethodTraits,
        vocab_size: int,
        make_merger: MakeMerger | None,
    ) -> None:
        """Take the parts in order of preference; `make_merger` is the backend of the rule `merge`, None for others."""
        self._parts = list(parts)
        self._rule = rule
        self._traits = traits
        self._distributions = (
            Distributions(vocab_size) if traits.draft_distribution == "soft" and draws_stay(rule) else None
        )
        self._requests: dict[str, Followed] = {}
        self._arrivals = 0
        self._make_merger = make_merger

    def start(self, request: RequestView) -> None:
        """Take in a request; parts are told of it when they are first called for it."""
        before = self._requests.get(request.id)
        if before is not None:  # it was preempted: its parts know it, and what their drafts were worth is not lost
            again = Followed(before.parts, before.estimates, len(request.tokens), before.merger)
            self._requests[request.id] = again
            return
        extras: Sequence[Any] = request.extra if isinstance(request.extra, tuple) else (None,) * len(self._parts)
        self._arrivals += 1
        parts = [PartRequest(request.id, PartView(request, extra), self._arrivals) for extra in extras]
        merger = None if self._make_merger is None else self._make_merger(len(parts))
        self._requests[request.id] = Followed(parts, [Estimate() for _ in parts], len(request.tokens), merger)

    def propose(self, batch: BatchView) -> Draft:
        """Return one draft a row: what the rule makes of those of the parts."""
        followed = [self._requests[request.id] for request in batch.requests]
        limits = batch.max_draft.tolist()
        for one, request, key in zip(followed, batch.requests, batch.noise.keys.tolist(), strict=True):
            self._learn(one, request.tokens)
            for index, (part, of_part) in enumerate(zip(self._parts, one.parts, strict=True)):
                # Parts that draw on their own draw apart from each other.
                of_part.key = key if part.traits.shares_noise else (key + index * ODD) % 2**64
        if batch.rows is not None:
            self._commit(batch.rows, followed)
        if batch.verified is not None:
            self._answer(batch.verified, followed)
        if self._make_merger is not None:
            return self._merged(batch, followed, limits)
        rows = self._rows(batch, followed, limits)
        for one, own, limit in zip(followed, rows, limits, strict=True):
            one.drafted = own
            one.steps += limit > 0
        return self._draft([self._choose(own) for own in rows])

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Tell the parts; a request that comes back keeps what its last drafts were worth."""
        one = self._requests.get(request.id)
        if one is None:
            return
        for part, own in zip(self._parts, one.parts, strict=True):
            part.runner.finish(own, reason)
        if reason == "preempted":
            self._learn(one, request.tokens)
        else:
            del self._requests[request.id]

    def close(self) -> None:
        """Close the parts."""
        self._requests.clear()
        for part in self._parts:
            part.runner.close()

    def memory_bytes(self) -> int:
        """Return the bytes held by the parts that tell."""
        return sum(part.runner.memory_bytes() or 0 for part in self._parts)

    def memory_digest(self) -> bytes:
        """Return a digest of what the parts knew before any request."""
        known = [part.proposer.memory_digest() for part in self._parts if isinstance(part.proposer, Remembers)]
        return hashlib.sha256(b"\0".join(known)).digest() if any(known) else b""

    def part_seconds(self) -> list[float]:
        """Return the seconds of each part."""
        return [part.seconds for part in self._parts]

    def _rows(self, batch: BatchView, followed: Sequence[Followed], limits: Sequence[int]) -> list[list[PartRow]]:
        """Ask the parts in order; return for each batch row what each part drafted."""
        found: list[list[PartRow]] = [[] for _ in followed]
        if self._distributions is not None:
            self._distributions.begin()
        for index in range(len(self._parts)):
            rooms = [
                limit if self._is_asked(index, one, before) else 0
                for one, before, limit in zip(followed, found, limits, strict=True)
            ]
            draft = self._ask(index, batch, followed, rooms)
            offset = (
                None if self._distributions is None or draft.q is None else self._distributions.add(draft.q, draft.d2t)
            )
            for own_rows, row in zip(found, _split(draft, index, offset), strict=True):
                own_rows.append(row)
        return found

    def _merged(self, batch: BatchView, followed: Sequence[Followed], limits: Sequence[int]) -> Draft:
        """Ask all parts, and return one tree a row."""
        for one in followed:
            one.tree.clear()
        for index in range(len(self._parts)):
            draft = self._ask(index, batch, followed, limits)
            tokens = np.ascontiguousarray(draft.tokens, np.int32)
            parents = None if draft.parents is None else np.ascontiguousarray(draft.parents, np.int32)
            estimates = None if draft.confidence is None else np.ascontiguousarray(draft.confidence, np.float32)
            start = 0
            for one, length in zip(followed, draft.lengths or (), strict=True):
                if length:
                    cut = slice(start, start + length)
                    own = None if parents is None else parents[cut]
                    one.tree.add(index, tokens[cut], own, None if estimates is None else estimates[cut])
                    start += length
        out, confidence = np.empty((3, sum(limits)), np.int32), np.empty(sum(limits), np.float32)
        lengths, total = list[int](), 0
        for one, limit in zip(followed, limits, strict=True):
            lengths.append(one.tree.pick(limit, out, confidence, total) if limit else 0)
            total += lengths[-1]
        tokens, parents, part = out[:, :total]
        return Draft(lengths, tokens, parents, confidence=confidence[:total], part=part)

    def _ask(self, index: int, batch: BatchView, followed: Sequence[Followed], rooms: Sequence[int]) -> Draft:
        """Return the drafts of one part, at most `rooms` a row; it sees the rows of all requests in any case."""
        part, slots = self._parts[index], list[Slot]()
        run_len, newest_known = batch.run_len.tolist(), batch.newest_known.tolist()
        for one, room, run, newest in zip(followed, rooms, run_len, newest_known, strict=True):
            own = one.parts[index]
            own.max_draft = room or None
            slots.append(Slot(own, run, newest, room))
        began = time.perf_counter()
        draft = part.runner.propose(slots, len(followed))
        part.seconds += time.perf_counter() - began
        return draft

    def _is_asked(self, index: int, one: Followed, before: Sequence[PartRow]) -> bool:
        """Return whether a part is to draft for a request; all parts see its rows in any case."""
        if self._rule == "first":
            return not any(len(row) for row in before)
        return self._rule != "learned" or index == self._preferred(one)

    def _preferred(self, one: Followed) -> int:
        """Return the part whose drafts are worth most to a request, or one whose worth has to be found out."""
        count = len(self._parts)
        if one.steps < TRIES * count:
            return one.steps % count
        if one.steps % AGAIN == 0:
            return one.steps // AGAIN % count
        worth = [
            (1.0 + estimate.expected(part.k)) / (1.0 + COST[part.traits.weights])
            for estimate, part in zip(one.estimates, self._parts, strict=True)
        ]
        return worth.index(max(worth))

    def _choose(self, own: Sequence[PartRow]) -> PartRow:
        if self._rule == "longest":
            return rules.longest(own)
        return rules.extend(own) if self._rule == "extend" else rules.first(own)

    def _learn(self, one: Followed, tokens: IntArray) -> None:
        """Compare the last drafts with what the request has gained since."""
        new = tokens[one.seen :]
        one.seen = len(tokens)
        if one.merger is not None and len(new):
            one.merger.compare(new)
        gained = new.tolist()
        if not one.drafted or not gained:
            return
        for row, estimate in zip(one.drafted, one.estimates, strict=True):
            if len(row):
                estimate.learn(*depth_reached(row.tokens, row.parents, gained))
        one.drafted = []

    def _commit(self, rows: Rows, followed: Sequence[Followed]) -> None:
        """Hand the rows that the host delivered to the parts that read them."""
        ends = np.searchsorted(rows.request, np.arange(len(followed) + 1))
        for i, one in enumerate(followed):
            low, high = int(ends[i]), int(ends[i + 1])
            if low == high:
                continue
            end = int(rows.positions[high - 1]) + 1
            # Of rows that come one a call, those between two calls are not missing: nobody asked for them.
            begin = one.delivered if self._traits.rows == "last" and not rows.gap[i] else int(rows.positions[low])
            one.delivered = end
            hidden = None if rows.hidden is None else rows.hidden[low:high]
            aux = None if rows.aux is None else rows.aux[low:high]
            for part, own in zip(self._parts, one.parts, strict=True):
                own_hidden = hidden if part.traits.hidden else None
                own_aux = aux if part.traits.aux_layers else None
                if own_aux is not None and part.columns is not None:
                    own_aux = own_aux[:, part.columns]
                part.runner.commit(own, begin, end - begin, own_hidden, own_aux)

    def _answer(self, verified: VerifiedRows, followed: Sequence[Followed]) -> None:
        """Show the parts that ask for it what the target answered, to drafts of the others as well."""
        for i, answers in enumerate(by_request(verified, len(followed))):
            for part, own in zip(self._parts, followed[i].parts, strict=True):
                n = part.runner.verified_top_k
                if n and answers is not None:
                    part.runner.answer(own, answers.first(n))

    def _draft(self, rows: Sequence[PartRow]) -> Draft:
        """Return the rows in the form of the contract."""
        tokens = np.asarray([token for row in rows for token in row.tokens], np.int32)
        lengths = [len(row) for row in rows]
        parents = None
        if self._traits.shape == "tree":
            each = (range(-1, len(row) - 1) if row.parents is None else row.parents for row in rows)
            parents = np.asarray([parent for own in each for parent in own], np.int32)
        part = np.asarray([origin for row in rows for origin in row.origin], np.int32)
        confidence = None
        if all(row.confidence is not None or not len(row) for row in rows):
            known = [value for row in rows for value in row.confidence or ()]
            confidence = np.asarray(known, np.float32)
        drawn = None if self._distributions is None else self._distributions.q()
        if drawn is None:
            return Draft(lengths, tokens, parents, confidence=confidence, part=part)
        q_row = [at for row in rows for at in (row.q_row or [-1] * len(row))]
        own_q = np.asarray(q_row, np.int32)
        return Draft(lengths, tokens, parents, drawn[0], own_q, drawn[1], confidence=confidence, part=part)


def _split(draft: Draft, part: int, offset: int | None) -> list[PartRow]:
    """Return a host-form draft row by row."""
    found = []
    begin = 0
    tokens = draft.tokens.tolist()
    for length in draft.lengths or ():
        if not length:
            found.append(EMPTY)
            continue
        cut = slice(begin, begin + length)
        parents = None if draft.parents is None else draft.parents[cut].tolist()
        q_row = None
        if offset is not None and draft.q_row is not None:
            q_row = [at + offset if at >= 0 else -1 for at in draft.q_row[cut].tolist()]
        confidence = None if draft.confidence is None else draft.confidence[cut].tolist()
        found.append(PartRow(tokens[cut], parents, [part] * length, q_row, confidence))
        begin += length
    return found
