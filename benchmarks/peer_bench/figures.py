"""From rows to figures: speeds, ratios with 90 % intervals, and what the project asks of them; plain data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from peer_bench.arms import LLAMA, OWN_NGRAM, OWN_SUFFIX, PLAIN, PLAIN_OF, TRANSFORMERS, VLLM, VLLM_NGRAM
from peer_bench.measure import AGAIN, FIRST, MANY, ONE, SAME_PREFIX, Row, Run
from specdec_engine.bench.intervals import speed_ratio

ALL, DECODE = "all", "decoding"
Figure = dict[str, Any]
# Name, limit, and whether the figure is to be at least or at most that.
PEERS: Final = ((TRANSFORMERS, 2.0), (VLLM, 1.4), (LLAMA, 1.1))
GOALS: Final = (
    ("forward of 1 row / transformers", 0.5, "most"),
    ("forward of 8 rows / 1 row", 1.15, "most"),
    ("forward of 16 rows / 1 row", 1.25, "most"),
    *((f"plain / {peer}, {part}", least, "least") for peer, least in PEERS for part in (ALL, DECODE)),
    ("n-gram / vLLM n-gram", 1.3, "least"),
    ("n-gram / plain", 1.5, "least"),
    ("suffix, second pass / plain", 4.0, "least"),
    ("n-gram / plain, worst task's low end", 0.97, "least"),
    ("suffix / plain, worst task's low end", 0.97, "least"),
    ("decoding together / one at a time", 4.5, "least"),
    ("together: n-gram / plain", 1.0, "least"),
    ("first token at 2000 ids / transformers", 1.0, "most"),
    ("first token, same prefix again / first time", 0.35, "most"),
)


class Rows:
    """Rows by section, arm and unit."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Sort them."""
        self._by: dict[tuple[str, str], dict[int, Row]] = {}
        for row in rows:
            self._by.setdefault((row.section, row.arm), {})[row.unit] = row

    def of(self, section: str, arm: str) -> dict[int, Row]:
        """Return the rows of an arm in a section by unit."""
        return self._by.get((section, arm), {})

    def arms(self, section: str) -> list[str]:
        """Return the arms of a section."""
        return [arm for found, arm in self._by if found == section]

    def ratio(self, a: tuple[str, str], b: tuple[str, str], part: str = ALL) -> Figure | None:
        """Return how many times the tokens per second of `b` (section, arm) `a` has, over units of both.

        `part` is ALL, DECODE (behind the first tokens) or a task. None where no unit has both.
        """
        mine, other = self.of(*a), self.of(*b)
        units = [unit for unit in mine if unit in other and part in (ALL, DECODE, mine[unit].task)]
        columns = [[*counted(mine[unit], part), *counted(other[unit], part)] for unit in units]
        kept = [each for each in columns if min(each) > 0]
        return asdict(speed_ratio(*np.array(kept, np.float64).T)) if kept else None


def counted(row: Row, part: str) -> tuple[float, float]:
    """Return tokens and seconds of a row, or of its part behind the first tokens."""
    if part == DECODE:
        return row.tokens - row.first_tokens, row.seconds - row.first_seconds
    return row.tokens, row.seconds


def figures(run: Run, together: int) -> Figure:
    """Return all figures as plain data."""
    rows = Rows(run.rows)
    tasks = list(dict.fromkeys(row.task for row in run.rows if row.section == ONE))
    found: Figure = {"tasks": tasks, "tokens_per_second": {}, "over_specdec": {}, "over_own_plain": {}, "same": {}}
    for section in (ONE, AGAIN, MANY):
        for arm in rows.arms(section):
            name = arm if section == ONE else f"{arm}, {section}"
            every = list(rows.of(section, arm).values())
            parts = (ALL, DECODE, *(tasks if section != MANY else ()))
            found["tokens_per_second"][name] = {part: _speed(every, part) for part in parts}
            found["over_specdec"][name] = {part: rows.ratio((section, arm), (section, PLAIN), part) for part in parts}
            plain = PLAIN_OF.get(arm, arm)
            found["over_own_plain"][name] = {part: rows.ratio((section, arm), (section, plain), part) for part in parts}
            if arm in PLAIN_OF:
                found["same"][name] = _same(every, rows.of(MANY if section == MANY else ONE, PLAIN_OF[arm]))
    found["forward_ms"] = {
        arm: {count: 1e3 * statistics.median(times) for count, times in by_rows.items()}
        for arm, by_rows in run.forwards.items()
    }
    found["first_token_ms"] = first_tokens(run.rows)
    found["goals"] = goals(rows, found, together)
    return found


def first_tokens(rows: Sequence[Row]) -> Figure:
    """Return least, median and most milliseconds to the first token, by section and arm."""
    times: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.section.startswith((FIRST, SAME_PREFIX)):
            times.setdefault(row.section, {}).setdefault(row.arm, []).append(1e3 * row.first_seconds)
    return {
        section: {arm: [min(each), statistics.median(each), max(each)] for arm, each in by_arm.items()}
        for section, by_arm in times.items()
    }


def goals(rows: Rows, found: Mapping[str, Any], together: int) -> list[Figure]:
    """Return each of GOALS with what was measured, None where it could not be."""
    forward, first = found["forward_ms"], found["first_token_ms"]
    own, theirs = forward.get(PLAIN), forward.get(TRANSFORMERS)
    values: dict[str, Any] = {}
    if own:
        values |= {f"forward of {count} rows / 1 row": own[count] / own[1] for count in (8, 16)}
        if theirs:
            values["forward of 1 row / transformers"] = own[1] / theirs[1]
    for peer, _ in PEERS:
        for part in (ALL, DECODE):
            values[f"plain / {peer}, {part}"] = rows.ratio((ONE, PLAIN), (ONE, peer), part)
    values["n-gram / vLLM n-gram"] = rows.ratio((ONE, OWN_NGRAM), (ONE, VLLM_NGRAM))
    values["n-gram / plain"] = rows.ratio((ONE, OWN_NGRAM), (ONE, PLAIN))
    values["suffix, second pass / plain"] = rows.ratio((AGAIN, OWN_SUFFIX), (AGAIN, PLAIN))
    for name, arm in (("n-gram", OWN_NGRAM), ("suffix", OWN_SUFFIX)):
        lows = [(found["over_specdec"].get(arm) or {}).get(task) for task in found["tasks"]]
        known = [low["low"] for low in lows if low is not None and low["low"] is not None]
        values[f"{name} / plain, worst task's low end"] = min(known) if known else None
    values["decoding together / one at a time"] = _together(rows, together)
    values["together: n-gram / plain"] = rows.ratio((MANY, OWN_NGRAM), (MANY, PLAIN), DECODE)
    values["first token at 2000 ids / transformers"] = _quotient(first.get(f"{FIRST} 2000", {}), PLAIN, TRANSFORMERS)
    again, once = (first.get(f"{SAME_PREFIX} {number}", {}).get(PLAIN) for number in (2, 1))
    values["first token, same prefix again / first time"] = again[1] / once[1] if again and once else None
    return [_goal(name, limit, side, values.get(name)) for name, limit, side in GOALS]


def _goal(name: str, limit: float, side: str, value: Any) -> Figure:
    ratio = value if isinstance(value, dict) else {"value": value, "low": None, "high": None}
    measured = ratio["value"]
    met = None if measured is None else bool(measured >= limit if side == "least" else measured <= limit)
    return {"figure": name, "wanted": f"at {side} {limit}", **ratio, "met": met}


def _speed(rows: Sequence[Row], part: str) -> float | None:
    """Return tokens per second over rows of a part, None where there are none."""
    chosen = [counted(row, part) for row in rows if part in (ALL, DECODE, row.task)]
    seconds = sum(each for _, each in chosen)
    return sum(tokens for tokens, _ in chosen) / seconds if seconds > 0 else None


def _together(rows: Rows, together: int) -> Figure | None:
    """Return how many times the decoding speed of the same prompts one at a time all of a group together have."""
    many, one = rows.of(MANY, PLAIN), rows.of(ONE, PLAIN)
    columns = []
    for unit, row in many.items():
        alone = [counted(one[i], DECODE) for i in range(unit * together, (unit + 1) * together) if i in one]
        columns.append([*counted(row, DECODE), sum(t for t, _ in alone), sum(s for _, s in alone)])
    kept = [each for each in columns if min(each) > 0]
    return asdict(speed_ratio(*np.array(kept, np.float64).T)) if kept else None


def _same(mine: Sequence[Row], plain: Mapping[int, Row]) -> list[int]:
    """Return how many answers are those of plain decoding, and of how many."""
    pairs = [(row.answers, plain[row.unit].answers) for row in mine if row.unit in plain]
    return [sum(sum(map(list.__eq__, a, b)) for a, b in pairs), sum(len(a) for a, _ in pairs)]


def _quotient(medians: Mapping[str, Sequence[float]], a: str, b: str) -> float | None:
    return medians[a][1] / medians[b][1] if a in medians and b in medians else None
