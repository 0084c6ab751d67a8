"""The run: what each arm is asked, in which order; rows of plain data come out. It knows processes, not libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from peer_bench.arms import OWN_SUFFIX, PLAIN, PLAIN_ARMS, TOGETHER, TRANSFORMERS, Program
from peer_bench.machine import Load
from peer_bench.process import Peer

FIRST_LENGTHS: Final = (512, 2000)
PREFIX, BEHIND = 1500, 32
FORWARD_ROWS: Final = (1, 4, 8, 16, 32)
FORWARD_CONTEXT, FORWARD_TURNS = 200, 3
# The sections of rows.
ONE, AGAIN, MANY, FIRST, SAME_PREFIX = "one at a time", "second pass", "together", "first token", "same prefix"


@dataclass(frozen=True)
class Row:
    """What one arm did with one unit of prompts.

    section       which part of the run it belongs to
    unit          number of the prompt or group within the section; `task` "mixed" where there is none
    answers, seconds, first_tokens, first_seconds  as `Timed` has them; `tokens` are those of all answers
    """

    section: str
    arm: str
    unit: int
    task: str
    prompts: int
    tokens: int
    seconds: float
    first_tokens: int
    first_seconds: float
    answers: list[list[int]] = field(repr=False)


@dataclass
class Run:
    """Processes by arm, what they have done, and which arms fell out with which reason."""

    peers: dict[str, Peer]
    skipped: dict[str, str]
    max_tokens: int
    load: Load
    written: Callable[[], None] = lambda: None
    rows: list[Row] = field(default_factory=list)
    forwards: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def arms(self, wanted: Sequence[str] | None = None) -> list[str]:
        """Return the arms that take part still, of those wanted."""
        return [arm for arm in self.peers if arm not in self.skipped and (wanted is None or arm in wanted)]

    def ask(self, arm: str, call: str, /, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer; None if the arm fails, which then takes no further part."""
        try:
            return self.peers[arm].ask(call, **arguments)
        except (RuntimeError, OSError) as error:
            self.skipped[arm] = f"failed: {error}"
            say(f"{arm} takes no further part: {error}")
            return None

    def generate(
        self,
        place: tuple[str, int, str],
        arm: str,
        prompts: list[list[int]],
        most: int | None = None,
        keep: bool = False,
    ) -> None:
        """Let an arm answer prompts, and keep the row; `place` is section, unit and task."""
        section, unit, task = place
        limit = self.max_tokens if most is None else most
        answer = self.ask(arm, "generate", arm=arm, prompts=prompts, max_tokens=limit, keep=keep, space="run")
        if answer is None:
            return
        tokens = sum(map(len, answer["answers"]))
        self.rows.append(Row(section, arm, unit, task, len(prompts), tokens, **answer))

    def in_turn(self, place: tuple[str, int, str], prompts: list[list[int]], wanted: Sequence[str] | None) -> None:
        """Let arms answer the same prompts, their order turned by one with each unit."""
        arms = self.arms(wanted)
        turn = place[1] % max(1, len(arms))
        for arm in arms[turn:] + arms[:turn]:
            self.generate(place, arm, prompts)
        self.load.note()
        self.written()


def say(text: str) -> None:
    """Write one line for people."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def started(
    programs: Sequence[Program], common: dict[str, Any], logs: Path, load: Load
) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Start all processes, one after the other; yield the run and what each library says of itself; end them."""
    peers: dict[str, Peer] = {}
    skipped: dict[str, str] = {}
    about: dict[str, Any] = {}
    opened: list[Peer] = []
    try:
        for program in programs:
            name = ", ".join(program.arms)
            if program.missing is not None:
                skipped |= dict.fromkeys(program.arms, program.missing)
                say(f"skipped: {name}: {program.missing}")
                continue
            say(f"starting {name}")
            log = logs / f"peers.{next(iter(program.arms)).replace(' ', '_')}.log"
            with log.open("w", encoding="utf-8") as errors:
                settings = {**common, **program.settings, "library": program.library, "arms": dict(program.arms)}
                peer = Peer(name, program.python, settings, errors)
            opened.append(peer)
            try:
                peer.start()
            except RuntimeError as error:
                skipped |= dict.fromkeys(program.arms, f"did not start: {error}; see {log}")
                say(f"skipped: {name}: {error}; see {log}")
                continue
            about.setdefault(program.library, peer.about)
            peers |= dict.fromkeys(program.arms, peer)
        yield Run(peers, skipped, common["max_tokens"], load), about
    finally:
        for peer in opened:
            peer.close()


def measure(run: Run, prompts: Sequence[tuple[str, list[int]]], together: int, turns: int) -> None:
    """Do the whole run; `turns` is how often forwards, first tokens and same prefixes are timed."""
    say("warming up")
    for arm in run.arms():
        for ids, most in ((prompts[0][1][:64], 8), (prompts[0][1], 16)):
            run.ask(arm, "generate", arm=arm, prompts=[ids], max_tokens=most, keep=False, space="warm-up")
    time_forwards(run, turns)
    for unit, (task, ids) in enumerate(prompts):
        run.in_turn((ONE, unit, task), [ids], None)
        say(f"prompt {unit + 1} of {len(prompts)}")
    for unit, (task, ids) in enumerate(prompts):
        run.in_turn((AGAIN, unit, task), [ids], (PLAIN, OWN_SUFFIX))
    say("second pass done")
    for unit, group in enumerate(groups(prompts, together)):
        run.in_turn((MANY, unit, "mixed"), group, TOGETHER)
        say(f"group {unit + 1} done")
    long = [i for _, ids in prompts for i in ids]
    time_first_tokens(run, long, turns)
    time_prefixes(run, long, turns)


def groups(prompts: Sequence[tuple[str, list[int]]], together: int) -> list[list[list[int]]]:
    """Return whole groups of prompts in their order."""
    ids = [each for _, each in prompts]
    return [ids[at : at + together] for at in range(0, len(ids) - together + 1, together)]


def time_forwards(run: Run, turns: int) -> None:
    """Time forwards by rows of two libraries in turns."""
    for _ in range(turns):
        for arm in run.arms((TRANSFORMERS, PLAIN)):
            wish = {"rows": list(FORWARD_ROWS), "context": FORWARD_CONTEXT, "turns": FORWARD_TURNS}
            answer = run.ask(arm, "forwards", **wish)
            if answer is not None:
                found = run.forwards.setdefault(arm, {})
                for rows, seconds in answer["result"].items():
                    found.setdefault(int(rows), []).extend(seconds)
    say("forwards by rows done")
    run.written()


def piece(ids: Sequence[int], start: int, count: int) -> list[int]:
    """Return so many ids from a place on, beginning anew at the end."""
    return [ids[(start + i) % len(ids)] for i in range(count)]


def time_first_tokens(run: Run, ids: Sequence[int], turns: int) -> None:
    """Time the first token behind prompts of fixed lengths, another text each time; plain arms only."""
    for length in FIRST_LENGTHS:
        for unit in range(turns):
            for arm in run.arms(PLAIN_ARMS):
                prompt = piece(ids, 997 * unit, length)
                run.generate((f"{FIRST} {length}", unit, "mixed"), arm, [prompt], 1)
            run.load.note()
    say("first tokens done")
    run.written()


def time_prefixes(run: Run, ids: Sequence[int], turns: int) -> None:
    """Time the first token of two requests with the same beginning, of plain arms that could keep it."""
    for unit in range(turns):
        shared = piece(ids, 1499 * unit, PREFIX)
        for arm in run.arms([arm for arm in PLAIN_ARMS if arm != TRANSFORMERS]):
            for number in range(2):
                prompt = shared + piece(ids[::-1], 100 * number + unit, BEHIND)
                place = (f"{SAME_PREFIX} {number + 1}", unit, "mixed")
                run.generate(place, arm, [prompt], 1, keep=number == 1)
    say("same prefix done")
    run.written()
