"""Asks many plugins one question in a child process, so that none of those not chosen is imported in this one.

The child imports the plugins and answers in plain data, a line each. One that hangs or ends the child is named, and
the others are asked in a new child. Answers are kept for the life of the process. Where no child can be started, the
plugins are asked here.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Literal

from specdec_core.config.options import OPTIONS_HOOKS, keys_of, options_model
from specdec_core.errors import CheckStageError, SpecdecError
from specdec_core.registry.catalog import Catalog, Record
from specdec_core.registry.loaded import LoadedPlugin
from specdec_core.registry.loader import Registry
from specdec_core.registry.waiting import wait
from specdec_core.sources import Detection, DraftSource, TargetSwap

Question = Literal["detect", "swap", "load_as", "options"]
HOOKS: Final[dict[str, tuple[str, str, type[Any]]]] = {
    "detect": ("specdec_detect_method", "draft", Detection),
    "swap": ("specdec_swap_target", "source", TargetSwap),
}
LOAD_AS: Final = "specdec_load_target_as"
LIMIT: Final = 20.0  # seconds that one plugin may take over a checkpoint that is here
PROGRAM: Final = (
    "import json, sys; data = json.loads(sys.stdin.read()); sys.path[:] = data['path']; "
    "from specdec_core.registry.asking import serve; serve(data)"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What came of asking one plugin.

    said     the answer as plain data, None for "not mine" and where another name of the same plugin has answered
    problem  why there is no answer, "" if nothing went wrong
    loaded   False where the plugin could not even be loaded
    dead     it hung, or ended the process that asked it, and is not asked again
    """

    record: Record
    said: Any = None
    problem: str = ""
    loaded: bool = True
    dead: bool = False


class _NoChild(Exception):
    """A child process could not be started, or not find this package."""


_kept: Final[dict[tuple[Any, ...], Answer]] = {}
_dead: Final[dict[tuple[Any, ...], str]] = {}  # plugins that hung or ended the child, which are not asked again
_logged: Final[set[str]] = set()


def ask(
    question: Question, records: Sequence[Record], registry: Registry, source: DraftSource | None = None
) -> list[Answer]:
    """Return one answer a record, in order.

    question  "detect": a `Detection`; "swap": a `TargetSwap`; "load_as": the keys under which a target of
              unknown type is loaded; "options": the keys of its options model
    source    the checkpoint, for the first three
    """
    place = (tuple(sys.path), tuple(map(id, registry.hookspec_modules)))
    about = (question, *_state_of(source))
    keys = [(about, place, record, _path_of(record)) for record in records]
    open_ = [i for i, key in enumerate(keys) if key not in _kept]
    for i in open_:
        problem = _dead.get(keys[i][1:])
        if problem:
            _kept[keys[i]] = Answer(records[i], problem=problem)
    here = [i for i in open_ if records[i].local is not None and _path_of(records[i]) is None]
    there = [i for i in open_ if i not in here and keys[i] not in _kept]
    found = {i: answer for i, answer in zip(here, _here(question, records, here, registry, source), strict=True)}
    for i, answer in zip(there, _there(question, [records[i] for i in there], registry, source), strict=True):
        _kept[keys[i]] = answer
        if answer.dead:
            _dead[keys[i][1:]] = answer.problem
    return [found.get(i) or _kept[key] for i, key in enumerate(keys)]


def _here(
    question: Question, records: Sequence[Record], chosen: Sequence[int], registry: Registry, source: DraftSource | None
) -> list[Answer]:
    """Ask plugins in this process: objects that are in it already, or where there is no child."""
    lines = answers(question, [records[i] for i in chosen], registry.hookspec_modules, source)
    return [_answer(records[chosen[line["of"]]], line) for line in lines if "asking" not in line]


def _there(
    question: Question, records: Sequence[Record], registry: Registry, source: DraftSource | None
) -> list[Answer]:
    found: list[Answer] = []
    while len(found) < len(records):
        rest = records[len(found) :]
        try:
            found += _one_child(question, rest, registry, source)
        except _NoChild as error:
            if "no child" not in _logged:
                _logged.add("no child")
                logger.warning("no process can be started to ask plugins in (%s); they are asked in this one", error)
            return found + _here(question, rest, range(len(rest)), registry, source)
    return found


def _one_child(
    question: Question, records: Sequence[Record], registry: Registry, source: DraftSource | None
) -> Iterator[Answer]:
    """Yield answers until all are asked, or until a plugin hangs or ends the child, whose failure is the last one."""
    data = {
        "path": sys.path,
        "question": question,
        "records": [{**asdict(replace(record, local=None)), "local": _path_of(record)} for record in records],
        "hookspecs": [module.__name__ for module in registry.hookspec_modules],
        "source": None if source is None else source.as_json(),
    }
    if not sys.executable:
        message = "Python does not know its own program"
        raise _NoChild(message)
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
    except OSError as error:
        raise _NoChild(str(error)) from error
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
    reader.start()
    try:
        _send(child, json.dumps(data, default=str))
        # What a plugin reads of the hub may have to be fetched first, however long that takes.
        limit = None if source is not None and not Path(source.model).expanduser().exists() else LIMIT
        yield from _listen(child, lines, records, limit)
    finally:
        child.kill()
        child.wait()
        reader.join(1.0)  # it closes the pipe, which what the child has started may hold open


def _send(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(text)
        child.stdin.close()
    except OSError as error:
        raise _NoChild(str(error)) from error


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _listen(
    child: subprocess.Popen[str], lines: queue.Queue[str | None], records: Sequence[Record], limit: float | None
) -> Iterator[Answer]:
    asking: int | None = None
    done = 0
    while done < len(records):
        try:
            line = wait(lambda seconds: lines.get(timeout=seconds), limit, queue.Empty, child.pid)
        except queue.Empty:
            line, problem = None, f"it did not answer within {limit:g} seconds"
        else:
            problem = "" if line else f"it ended the process that asked it, with code {child.wait()}"
        if line is None and asking is None:
            message = problem or "it gave no answer"
            raise _NoChild(message)
        if line is None:
            step = f"Uninstall {records[done].distribution}, or tell its authors."
            failure = CheckStageError(records[done], problem, step)
            yield Answer(records[done], problem=str(failure), dead=True)
            return
        said = json.loads(line)
        if "asking" in said:
            asking = said["asking"]
        else:
            yield _answer(records[said["of"]], said)
            done += 1


def _answer(record: Record, line: Mapping[str, Any]) -> Answer:
    return Answer(record, line.get("said"), line.get("problem", ""), line.get("loaded", True))


def _path_of(record: Record) -> str | None:
    return os.fspath(record.local) if isinstance(record.local, str | os.PathLike) else None


def _state_of(source: DraftSource | None) -> tuple[Any, ...]:
    """Return what an answer about a checkpoint depends on: its name, and its files as they are now."""
    if source is None:
        return ()
    path = Path(source.model).expanduser()
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    states = tuple((file.name, (state := file.stat()).st_mtime_ns, state.st_size) for file in files)
    return (json.dumps(source.as_json(), sort_keys=True, default=str), states)


def answers(
    question: Question, records: Sequence[Record], hookspecs: Sequence[Any], source: DraftSource | None
) -> Iterator[dict[str, Any]]:
    """Ask plugins in this process; yield a line before each is asked, and one with what came of it."""
    registry = Registry(Catalog.of([]), hookspecs=hookspecs)
    seen: set[int] = set()
    for i, record in enumerate(records):
        yield {"asking": i}
        loaded = False
        try:
            plugin = registry.load(record)
            loaded = True
            repeated = question in HOOKS and id(plugin.plugin) in seen
            seen.add(id(plugin.plugin))
            yield {"of": i, "said": None if repeated else _said(question, registry, plugin, source)}
        except SpecdecError as error:
            yield {"of": i, "problem": str(error), "loaded": loaded}


def _said(question: Question, registry: Registry, plugin: LoadedPlugin, source: DraftSource | None) -> Any:
    """Return a plugin's answer as plain data; raises the PluginError of what is wrong with it."""
    if question == "options":
        return sorted(keys_of(options_model(registry, plugin, OPTIONS_HOOKS[plugin.record.kind])))
    if question == "load_as":
        return load_as(registry, plugin, source) if source is not None else None
    hook, argument, kind = HOOKS[question]
    said = registry.call(plugin, hook, stage="check", **{argument: source})
    if said is None:
        return None
    if not isinstance(said, kind):
        problem = f"{hook} returned {type(said).__name__}, not {kind.__name__} or None"
        raise CheckStageError(plugin.record, problem, "Tell the authors of the plugin.")
    return {name: getattr(said, name) for name in kind.__dataclass_fields__}


def load_as(registry: Registry, plugin: LoadedPlugin, source: DraftSource) -> dict[str, Any] | None:
    """Return the keys under which a plugin would have a target of unknown type loaded, None if it does not know it."""
    said = registry.call(plugin, LOAD_AS, stage="check", method=plugin.record.name, hf_config=dict(source.hf_config))
    if said is not None and not hasattr(said, "keys"):
        problem = f"{LOAD_AS} returned {type(said).__name__}, not a mapping"
        raise CheckStageError(plugin.record, problem, "Tell the authors of the plugin.")
    return dict(said) if said else None


def serve(data: Mapping[str, Any]) -> None:
    """Answer on what is standard output now, and send what plugins print to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    encode = json.JSONEncoder(default=_plain).encode  # what a plugin then does to json is nothing to it
    records = [Record(**record) for record in data["records"]]
    source = None if data["source"] is None else DraftSource(**data["source"])
    hookspecs = [importlib.import_module(name) for name in data["hookspecs"]]
    for line in answers(data["question"], records, hookspecs, source):
        print(encode(line), file=stream, flush=True)
    stream.close()
    os._exit(0)  # threads that a plugin started must not keep the process alive


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
