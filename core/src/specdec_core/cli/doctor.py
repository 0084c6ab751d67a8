"""Loads plugins stage by stage, each in a process of its own, so that one that hangs or dies harms nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import IO, Any, Final, Literal

from specdec_core.config.options import OPTIONS_HOOKS, options_model, request_model
from specdec_core.errors import PluginError, SpecdecError
from specdec_core.registry.catalog import LOCAL_DISTRIBUTION, LOCAL_KINDS, Catalog, Record, parse_value
from specdec_core.registry.groups import Kind
from specdec_core.registry.importing import check_metadata, explain, import_object, missing_library
from specdec_core.registry.kernels import can_be_chosen
from specdec_core.registry.loader import Registry
from specdec_core.registry.side_effects import changed_since, heavy_modules, snapshot
from specdec_core.registry.waiting import wait

State = Literal["ok", "failed", "not available"]
PROCESSES: Final = 2
IMPORTED: Final = "imported"  # no stage: between two


@dataclass(frozen=True)
class Examination:
    """How far one plugin came.

    stage      the last stage it reached: metadata, version, import, register or options
    state      "ok", "failed", or "not available": a faster kernel whose library is not installed
    problem, next_step  what is wrong and what to do, "" if nothing
    import_seconds      how long the import took, None if it was not reached
    notes               what else importing it does to a process, and whether a kernel can ever be chosen, in words
    """

    record: Record
    stage: str
    state: State
    problem: str = ""
    next_step: str = ""
    import_seconds: float | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        data = {"stage": self.stage, "state": self.state, "problem": self.problem, "next_step": self.next_step}
        effects = {"import_seconds": self.import_seconds, "notes": list(self.notes)}
        return {**self.record.as_json(), **data, **effects}


def examine_all(records: Sequence[Record], catalog: Catalog, timeout: float) -> list[Examination]:
    """Examine records, two at a time, each in a process of its own that may take `timeout` seconds."""
    with ThreadPoolExecutor(PROCESSES) as pool:
        running = pool.map(lambda record: examine(record, catalog, timeout), records)
        return list(_with_progress(running, len(records)))


def examine(record: Record, catalog: Catalog, timeout: float) -> Examination:
    """Examine one record; what its metadata already tell needs no process."""
    try:
        check_metadata(record)
        if record.kind == "alias":
            return _examine_alias(record, catalog)
        if record.kind == "draft":
            return _examine_draft(record)
    except PluginError as error:
        return Examination(record, error.stage, "failed", error.problem, error.next_step)
    command = [sys.executable, "-m", __name__, json.dumps({**asdict(record), "local": _path_of(record)})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            said, _ = wait(lambda t: child.communicate(timeout=t), timeout, subprocess.TimeoutExpired, child.pid)
            otherwise = f"the process ended with code {child.returncode} and no answer"
        except subprocess.TimeoutExpired as error:  # all that came so far, as bytes
            said, otherwise = (
                (error.stdout or b"").decode(errors="replace"),
                f"it did not finish within {timeout:g} seconds",
            )
        finally:
            child.kill()
    return _outcome(record, said, otherwise)


def _path_of(record: Record) -> str | None:
    return os.fspath(record.local) if isinstance(record.local, str | os.PathLike) else None


def _examine_alias(record: Record, catalog: Catalog) -> Examination:
    new = record.value.rpartition(":")[2].rpartition(".")[2]
    if any(other.name == new for other in catalog.records if other.kind != "alias"):
        return Examination(record, "metadata", "ok")
    step = "Tell the authors of the plugin."
    return Examination(record, "metadata", "failed", f"nothing named {new!r} is installed.", step)


def _examine_draft(record: Record) -> Examination:
    """Look for its files and read its card; there is nothing to import."""
    from specdec_core.registry.drafts import look_at

    look_at(record)
    return Examination(record, "metadata", "ok")


def _outcome(record: Record, output: str, otherwise: str) -> Examination:
    """Read the lines that the process wrote: a stage before each is tried, and an answer at the end."""
    said: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines() if line.endswith("}")]
    stage = next((line["stage"] for line in reversed(said) if "stage" in line), "import")
    last = said[-1] if said else {}
    effects: dict[str, Any] = next((line for line in said if "notes" in line), {})
    seconds, notes = effects.get("import_seconds"), tuple(effects.get("notes", ()))
    if "state" in last:
        return Examination(record, stage, last["state"], last["problem"], last["next_step"], seconds, notes)
    return Examination(record, stage, "failed", f"{otherwise}.", f"Import {record.value} in Python to see why.")


def _with_progress(results: Iterator[Examination], total: int) -> Iterator[Examination]:
    """Show a bar on a terminal while the results come."""
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("examining", total=total)
        for result in results:
            progress.advance(task)
            yield result


def _serve(text: str, stream: IO[str]) -> None:
    """Load one record in this process, writing a line before each stage and one at the end."""

    encode = json.JSONEncoder().encode

    def write(**line: Any) -> None:
        stream.write(f"{encode(line)}\n")  # what a plugin does to `print` is nothing to it
        stream.flush()

    record = Record(**json.loads(text))
    try:
        before, began = snapshot(), perf_counter()
        for stage in _stages(record):
            if stage == IMPORTED:
                write(import_seconds=perf_counter() - began, notes=_notes(record, before))
            else:
                write(stage=stage)
    except PluginError as error:
        optional = record.kind == "kernel" and not record.name.endswith(".reference")
        state = "not available" if optional and missing_library(record, error.__cause__) else "failed"
        write(stage=error.stage, state=state, problem=f"{error.problem}.", next_step=error.next_step)
    except SpecdecError as error:
        write(state="failed", problem=str(error), next_step="")
    except BaseException as error:  # the answer must be given whatever happens
        write(state="failed", problem=f"{explain(error)}.", next_step="Tell the authors of the plugin.")
    else:
        write(state="ok", problem="", next_step="")


def _stages(record: Record) -> Iterator[str]:
    """Yield the name of each stage, then go through it."""
    yield "import"
    found = import_object(record)
    yield IMPORTED
    if record.kind == "command":
        from specdec_core.cli.commands import load_command

        yield "register"
        load_command(record)
    elif record.kind == "kernel":
        if not callable(found):
            message = f"it is a {type(found).__name__}, which cannot be called"
            raise TypeError(message)
    elif record.kind in LOCAL_KINDS:
        yield from _plugin_stages(record)


def _notes(record: Record, before: dict[str, Any]) -> list[str]:
    """Return what importing a record did besides; a kernel may import what it is made with."""
    notes = []
    heavy = [name for name in heavy_modules() if name not in before["heavy"]]
    if heavy and record.kind != "kernel":
        notes.append(f"importing it imports {', '.join(heavy)}: import inside the hooks that need them")
    parsed = parse_value(record.value)
    package = parsed[0].partition(".")[0] if parsed else ""
    changed = changed_since(before, package)
    if changed:
        notes.append(f"importing it changes {', '.join(changed)}")
    if record.kind == "kernel" and not can_be_chosen(record):
        notes.append("it is chosen by no device: give it `supports(device)`, see docs/hooks.md")
    return notes


def _plugin_stages(record: Record) -> Iterator[str]:
    yield "register"
    local = {record.name: record.local} if record.distribution == LOCAL_DISTRIBUTION else {}
    registry = Registry(Catalog.of([] if local else [record]).with_local(local))
    kinds: tuple[Kind, ...] = LOCAL_KINDS if local else (record.kind,)
    failures: list[PluginError] = []
    for kind in kinds:
        try:
            plugin = registry.find(kind, record.name)
            break
        except PluginError as error:
            failures.append(error)
    else:
        raise failures[0]
    yield "options"
    options_model(registry, plugin, OPTIONS_HOOKS[plugin.record.kind])
    request_model(registry, plugin)


def _main() -> None:
    """Answer on what is standard output now, and send what plugins print to standard error."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(sys.argv[1], stream)
    stream.close()
    os._exit(0)  # threads that a plugin started must not keep the process alive


if __name__ == "__main__":
    _main()
