"""What one arm did on one unit: ids, who produced them, and where the time of its steps went; runs nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from specdec_engine.decoding.step import Step
from specdec_engine.requests.scheduled_rows import ScheduledRows

PHASES: Final = ("draft", "target", "verify", "rest")
TARGETS: Final = "t"  # a token that the target's own row gave
DRAFTED: Final = "d"  # a token that was drafted and accepted, by a method of one piece,
PARTS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # or by the first, second, ... part of a method that is made of others


@dataclass
class Recorder:
    """Adds up the steps of a run. Steps with prompt rows are counted apart: what they cost is the prompts' length.

    drafts           whether the arm speculates; if not, scheduling is all that happens before a forward
    prompt_seconds   of steps in which pieces of prompts ran
    seconds          of all other steps, by phase: drafting, the target's forward, sampling and verification, the rest
    forwards         rows of a forward -> [forwards, their seconds], of those other steps
    accepted_lengths accepted drafts -> rows of the forward with so many, of rows that had a draft
    undrafted        rows that had none, and could have
    producers        request -> who produced each of its tokens, a letter each
    """

    drafts: bool
    prompt_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    forwards: dict[int, list[float]] = field(default_factory=dict)
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    undrafted: int = 0
    producers: dict[str, str] = field(default_factory=dict)
    _step: Step | None = None

    def see(self, step: Step) -> None:
        """Keep a step until `add` comes with its seconds; this is what a `Stepper` is given to watch it."""
        self._step = step

    def add(self, wall: float) -> None:
        """Add the step that was seen last, of so many seconds from call to return."""
        step, self._step = self._step, None
        if step is None:  # no rows ran
            self.prompt_seconds += wall
            return
        self._add_tokens(step)
        if any(item.prompt for item in step.items):
            self.prompt_seconds += wall
            return
        spent = step.seconds
        parts = {
            "draft": spent["propose"] if self.drafts else 0.0,
            "target": spent["forward"],
            "verify": spent["sample"] + spent["verify"],
        }
        parts["rest"] = max(0.0, wall - sum(parts.values()))
        for phase, seconds in parts.items():
            self.seconds[phase] += seconds
        count = self.forwards.setdefault(step.out.rows, [0, 0.0])
        count[0] += 1
        count[1] += spent["forward"]

    def _add_tokens(self, step: Step) -> None:
        for item in step.drawn.items:
            accepted = min(len(item.accepted), item.kept)
            name = item.request.id
            letters = _letters(item, accepted) + TARGETS * (item.kept - accepted)
            self.producers[name] = self.producers.get(name, "") + letters
            if item.prompt or not self.drafts:
                continue
            if item.num_draft:
                self.accepted_lengths[len(item.accepted)] += 1
            else:
                self.undrafted += 1

    def of(self, requests: Sequence[str]) -> list[str]:
        """Return who produced the tokens of some requests."""
        return [self.producers.get(name, "") for name in requests]


def _letters(item: ScheduledRows, accepted: int) -> str:
    if item.part is None:
        return DRAFTED * accepted
    return "".join(PARTS[part % len(PARTS)] for part in item.part[item.accepted[:accepted]].tolist())
