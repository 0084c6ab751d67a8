"""Replaces old names of keys in a speculative configuration by today's, each with a warning and a decision."""

from __future__ import annotations

from typing import Any

from specdec_core.config.key_table import KEYS
from specdec_core.config.keys import Old
from specdec_core.config.resolution import Resolution
from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import DeprecatedNameWarning
from specdec_core.sources import Problem


def replace_deprecated_keys(resolution: Resolution) -> None:
    """Read every old name as the key that it is today; a problem if that key is given too, or a value has no successor.

    What was read under an old name is then checked like any other value; the problem names both.
    """
    given = resolution.config.as_json()
    old = {key: entry for key, entry in KEYS.items() if isinstance(entry, Old) and given.get(key) is not None}
    if not old:
        return
    kept = {key: value for key, value in given.items() if key not in old}
    names: dict[str, str] = {}
    for key, entry in old.items():
        problem = _problem(key, entry, given[key], kept)
        if problem is not None:
            resolution.problems.append(problem)
            continue
        kept[entry.new] = entry.values.get(given[key], given[key]) if entry.values else given[key]
        names[entry.new] = key
        resolution.warn(f"{key} is deprecated; use {entry.new!r}", DeprecatedNameWarning)
        resolution.decide(entry.new, kept[entry.new], f"given as {key}, its old name")
    resolution.config, problems = SpeculativeConfig.read(kept)
    resolution.problems.extend(_named(problem, names) for problem in problems)


def _problem(key: str, entry: Old, value: Any, kept: dict[str, Any]) -> Problem | None:
    if kept.get(entry.new) is not None:
        message = f"it is the old name of {entry.new}, which is given too"
        return Problem(key=key, message=message, next_step=f"leave {key} out")
    if entry.values and not (isinstance(value, str) and value in entry.values):
        message = f"expected {' or '.join(map(repr, entry.values))}, got {value!r}"
        return Problem(key=key, message=message, next_step=f"name a verifier with {entry.new}")
    return None


def _named(problem: Problem, names: dict[str, str]) -> Problem:
    """Add the old name, which is the one that the user wrote."""
    old = names.get(problem.key.partition(".")[0])
    if old is None:
        return problem
    return Problem(key=problem.key, message=f"{problem.message} (given as {old})", next_step=problem.next_step)
