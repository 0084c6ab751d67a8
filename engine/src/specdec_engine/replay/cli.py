"""The subcommand `specdec replay`: scores methods on recorded traces; loads no target model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from specdec_core.cli.output import emit
from specdec_core.cli.subcommand import of_function, run
from specdec_core.errors import RequestError
from specdec_engine import cli_options as options

if TYPE_CHECKING:
    from specdec_engine.bench.methods import Method
    from specdec_engine.traces import Trace

HELP: Final = "Score methods that look ids up on recorded token traces, without the target model."


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments and return its exit code.

    Raises RequestError for arguments that do not fit, like any other SpecdecError for what then goes wrong.
    """
    from specdec_engine.bench.methods import repeat_option

    return run(of_function(replay, HELP), repeat_option(args), "replay")


def replay(
    traces: Annotated[Path, typer.Argument(help="Traces, as `generate --record` and `bench --record` write them.")],
    methods: Annotated[
        list[str],
        typer.Option(
            metavar="FILE|JSON...",
            help="Speculative configurations: JSON, or files (.json, .jsonl, .yaml) with one, a list, or "
            "an object from labels to configurations.",
        ),
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first so many traces.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plugin: options.Plugin = None,
) -> int:
    """Read traces and methods, replay, print the table."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        message = f"--json {json_file}: there is no folder {str(json_file.parent)!r}"
        raise RequestError(message)
    from specdec_engine.bench.methods import load_methods
    from specdec_engine.cli import read_plugins
    from specdec_engine.replay.summary import lines
    from specdec_engine.traces import read_traces

    found, chosen = read_traces(traces)[:limit], load_methods(methods)
    figures = _figures(found, chosen, read_plugins(plugin))
    if json_file is not None:
        data = {"traces": str(traces), "methods": {each.label: dict(each.config) for each in chosen}, "arms": figures}
        try:
            json_file.write_text(json.dumps(data, indent=1), encoding="utf-8")
        except OSError as error:
            message = f"--json {json_file} cannot be written: {error.strerror or error}"
            raise RequestError(message) from error
    for line in lines(figures, len(found)):
        emit(line)
    return 0


def _figures(traces: Sequence[Trace], methods: Sequence[Method], plugins: dict[str, str]) -> list[dict[str, Any]]:
    """Replay the traces in order, every method on a trace before the next trace comes."""
    from collections import defaultdict

    from specdec_core.errors import MakeStageError
    from specdec_core.registry.catalog import Catalog
    from specdec_core.registry.loader import Registry
    from specdec_engine.bench.methods import check_methods
    from specdec_engine.bench.progress import Bar
    from specdec_engine.replay.run import Replayer, Score
    from specdec_engine.replay.summary import summarise
    from specdec_engine.replay.target import TraceTarget, cannot_make, describe, refuse

    info = describe(traces)
    registry = Registry(Catalog.discover().with_local(plugins))
    resolved = check_methods(methods, info, registry)
    for label, config in resolved.items():
        refuse(config, label, min(trace.top_n for trace in traces))
    replayers: dict[str, Replayer] = {}
    scores: dict[str, dict[str, Score]] = {label: defaultdict(Score) for label in resolved}
    try:
        for label, config in resolved.items():
            try:
                replayers[label] = Replayer(config, TraceTarget(info), registry)
            except MakeStageError as error:
                raise cannot_make(label, error) from error
        with Bar(len(traces), 0) as bar:
            for number, trace in enumerate(traces):
                for label, replayer in replayers.items():
                    bar.show(label)
                    replayer.run(number, trace, scores[label][trace.task])
                bar.advance()
        return [
            summarise(label, scores[label], [part.method for part in resolved[label].parts], replayers[label].failures)
            for label in resolved
        ]
    finally:
        for replayer in replayers.values():
            replayer.close()
