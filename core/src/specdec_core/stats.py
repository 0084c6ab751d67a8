"""What a host tells observers and controllers of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class StepStats:
    """Figures of one step, as observers and controllers get them; one entry a batch row that could have speculated.

    request_ids  ids of the rows
    proposed     [n] drafts that came from the proposer
    drafted      [n] drafts that were verified (proposed less what the host cut)
    accepted     [n] drafts accepted by the verifier, before stop rules
    emitted      [n] ids the row gained, after stop rules
    failed       the proposer's error of this step, None if it behaved
    rows         rows of the target's forward, prompt chunks and padding included
    prompt_rows  those of them that belong to prompts, or to ids that are run again after a preemption
    seconds      wall time by part: "propose", "forward", "sample", "verify", "commit"
    depths       [n] verified drafts that stand in sequence on the longest path; None: all of them, in chains
    asked        [n] whether the proposer was to draft for the row; None: for all. Not where speculation was off, nor
                 where no draft had room
    nodes        [n] which of the verified drafts were accepted, by their index in the row's draft; None: the first
                 ones, in chains
    parts        [n] which part made each of the verified drafts, as in `Draft.part`; None where the method has none
    """

    request_ids: list[str]
    proposed: list[int]
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    failed: str | None = None
    rows: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    depths: list[int] | None = None
    asked: list[bool] | None = None
    prompt_rows: int = 0
    nodes: list[list[int]] | None = None
    parts: list[list[int]] | None = None

    def copied(self) -> StepStats:
        """Return figures of their own, for a reader that may change them."""
        return replace(
            self,
            request_ids=list(self.request_ids),
            proposed=list(self.proposed),
            drafted=list(self.drafted),
            accepted=list(self.accepted),
            emitted=list(self.emitted),
            seconds=dict(self.seconds),
            depths=None if self.depths is None else list(self.depths),
            asked=None if self.asked is None else list(self.asked),
            nodes=None if self.nodes is None else [list(nodes) for nodes in self.nodes],
            parts=None if self.parts is None else [list(parts) for parts in self.parts],
        )
