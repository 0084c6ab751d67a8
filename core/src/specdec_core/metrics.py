"""Counters of speculation, summed over steps, ours and vLLM's; knows no engine, no clock and no exporter.

One *step* here is one row of one target forward that
could have speculated. It *proposes* drafts, the host may *cut* some, the rest are *drafted*, that is verified; of those
some are *accepted*; the row emits them and one more token (the bonus, or the correction). 3 of 5 drafts accepted:
drafted 5, accepted 3, emitted 4. A stop rule may then cut what was emitted: both figures are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specdec_core.stats import StepStats


@dataclass
class SpecMetrics:
    """Counters that never decrease, and rates made of them; a rate without a denominator is None, never nan.

    steps              rows that could have speculated
    drafts             those of them with at least one draft verified
    empty              those of them for which the proposer was asked and had nothing
    proposed           tokens that came from the proposer
    cut                proposed tokens that the host did not verify
    drafted            tokens verified
    accepted           tokens accepted by the verifier, before stop rules
    accepted_kept      accepted tokens that stop rules left
    emitted            tokens that all rows gained, after stop rules
    emitted_with_draft tokens of rows with a draft, before stop rules: accepted + 1 each
    kept_with_draft    tokens of rows with a draft, after stop rules
    failures           steps whose proposer failed
    drafted_per_pos    rows that had a draft at position i of a chain, or a node at depth i + 1 of a tree
    accepted_per_pos   rows whose draft at position i was accepted
    drafted_per_part   of `drafted`, those of each part of a method that is made of others; [] for one of one piece
    accepted_per_part  of `accepted`, those of each part
    lossy              no counter: the verifier changes the target's distribution, so the text is another one
    """

    steps: int = 0
    drafts: int = 0
    empty: int = 0
    proposed: int = 0
    cut: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_kept: int = 0
    emitted: int = 0
    emitted_with_draft: int = 0
    kept_with_draft: int = 0
    failures: int = 0
    drafted_per_pos: list[int] = field(default_factory=list)
    accepted_per_pos: list[int] = field(default_factory=list)
    drafted_per_part: list[int] = field(default_factory=list)
    accepted_per_part: list[int] = field(default_factory=list)
    lossy: bool = False

    def observe(self, stats: StepStats) -> None:
        """Add one step. Raises ValueError, and adds nothing, for figures that contradict each other."""
        depths = stats.drafted if stats.depths is None else stats.depths
        rows = list(zip(stats.proposed, stats.drafted, stats.accepted, stats.emitted, depths, strict=True))
        for row in rows:
            _check_row(*row)
        asked = [True] * len(rows) if stats.asked is None else stats.asked
        for row, was_asked in zip(rows, asked, strict=True):
            self._add(*row, asked=was_asked)
        for i, parts in enumerate(stats.parts or ()):
            self.add_parts(parts, range(stats.accepted[i]) if stats.nodes is None else stats.nodes[i])
        self.failures += stats.failed is not None

    def add_row(
        self,
        proposed: int,
        drafted: int,
        accepted: int,
        emitted: int,
        depth: int | None = None,
        *,
        asked: bool = True,
    ) -> None:
        """Add one row of one step; raises ValueError for figures that contradict each other.

        `depth` is the longest path of a tree, None for a chain; `asked` as in `StepStats`.
        """
        row = proposed, drafted, accepted, emitted, drafted if depth is None else depth
        _check_row(*row)
        self._add(*row, asked=asked)

    def add_parts(self, parts: Sequence[int], accepted: Iterable[int]) -> None:
        """Tell of a row that was added which part made each of its verified drafts, and which were accepted."""
        missing = max(parts, default=-1) + 1 - len(self.drafted_per_part)
        if missing > 0:
            self.drafted_per_part += [0] * missing
            self.accepted_per_part += [0] * missing
        for part in parts:
            self.drafted_per_part[part] += 1
        for node in accepted:
            self.accepted_per_part[parts[node]] += 1

    def merge(self, others: Iterable[SpecMetrics]) -> None:
        """Add the counters of others, e.g. of the samples of one prompt; the sum is lossy if one of them is."""
        for other in others:
            for name, value in vars(other).items():
                mine = getattr(self, name)
                if isinstance(value, list):
                    _add_each(mine, value)
                else:
                    setattr(self, name, (mine or value) if isinstance(value, bool) else mine + value)

    def since(self, earlier: SpecMetrics) -> SpecMetrics:
        """Return what was counted after `earlier`, an older copy of these counters; rates of it are of that time."""
        counted = SpecMetrics(lossy=self.lossy)
        for name, value in asdict(self).items():
            before = getattr(earlier, name)
            if isinstance(value, list):
                padded = before + [0] * (len(value) - len(before))
                setattr(counted, name, [a - b for a, b in zip(value, padded, strict=True)])
            elif not isinstance(value, bool):
                setattr(counted, name, value - before)
        return counted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted per drafted token; None before any draft."""
        return _ratio(self.accepted, self.drafted)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens gained by a row that had a draft, after stop rules, the bonus token included; None before any."""
        return _ratio(self.kept_with_draft, self.drafts)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens gained by a row, with or without a draft, after stop rules; None before any step."""
        return _ratio(self.emitted, self.steps)

    @property
    def acceptance_per_pos(self) -> list[float | None]:
        """Accepted per drafted token at each position: of the rows that had a draft there, not of all."""
        return [_ratio(a, d) for a, d in zip(self.accepted_per_pos, self.drafted_per_pos, strict=True)]

    def as_json(self) -> dict[str, Any]:
        """Return counters and rates as plain data that any JSON parser reads."""
        return {
            **asdict(self),
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "tokens_per_step": self.tokens_per_step,
            "acceptance_per_pos": self.acceptance_per_pos,
        }

    def _add(self, proposed: int, drafted: int, accepted: int, emitted: int, depth: int, *, asked: bool) -> None:
        self.steps += 1
        self.empty += asked and proposed == 0
        self.proposed += proposed
        self.cut += proposed - drafted
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_kept += min(accepted, emitted)
        self.emitted += emitted
        if drafted:
            self.drafts += 1
            self.emitted_with_draft += accepted + 1
            self.kept_with_draft += emitted
        missing = depth - len(self.drafted_per_pos)
        if missing > 0:
            self.drafted_per_pos += [0] * missing
            self.accepted_per_pos += [0] * missing
        for position in range(depth):
            self.drafted_per_pos[position] += 1
        for position in range(accepted):
            self.accepted_per_pos[position] += 1


@dataclass
class SpecDecodingStats:
    """The same facts under vLLM's names; drafts are those with at least one token verified, before stop rules.

    num_spec_tokens              the most drafts of a row, k
    num_drafts                   rows with a draft
    num_draft_tokens             tokens verified
    num_accepted_tokens          tokens accepted
    num_accepted_tokens_per_pos  [k] rows whose draft at that position was accepted
    """

    num_spec_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    @classmethod
    def new(cls, num_spec_tokens: int) -> SpecDecodingStats:
        """Return counters of nothing yet, for drafts of at most `num_spec_tokens`."""
        return cls(num_spec_tokens, num_accepted_tokens_per_pos=[0] * num_spec_tokens)

    @classmethod
    def of(cls, metrics: SpecMetrics, num_spec_tokens: int) -> SpecDecodingStats:
        """Return what our counters report, under vLLM's names."""
        stats = cls.new(max(num_spec_tokens, len(metrics.accepted_per_pos)))
        stats.num_drafts, stats.num_draft_tokens = metrics.drafts, metrics.drafted
        stats.num_accepted_tokens = metrics.accepted
        stats.num_accepted_tokens_per_pos[: len(metrics.accepted_per_pos)] = metrics.accepted_per_pos
        return stats

    def observe_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Add one row; a row of which no draft was verified is no draft. Raises ValueError for a contradiction."""
        if not 0 <= num_accepted_tokens <= num_draft_tokens <= self.num_spec_tokens:
            message = (
                f"{num_accepted_tokens} accepted of {num_draft_tokens} drafts with num_spec_tokens "
                f"{self.num_spec_tokens}: expected 0 <= accepted <= drafted <= num_spec_tokens"
            )
            raise ValueError(message)
        self.num_drafts += num_draft_tokens > 0
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1


def _check_row(proposed: int, drafted: int, accepted: int, emitted: int, depth: int) -> None:
    if not (0 <= accepted <= depth <= drafted <= proposed and 0 <= emitted <= accepted + 1):
        tree = f" to a depth of {depth}" if depth != drafted else ""
        message = (
            f"proposed {proposed}, drafted {drafted}{tree}, accepted {accepted}, emitted {emitted} contradict each "
            "other: expected 0 <= accepted <= drafted <= proposed and 0 <= emitted <= accepted + 1"
        )
        raise ValueError(message)


def _add_each(mine: list[int], other: list[int]) -> None:
    mine += [0] * (len(other) - len(mine))
    for place, value in enumerate(other):
        mine[place] += value


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
