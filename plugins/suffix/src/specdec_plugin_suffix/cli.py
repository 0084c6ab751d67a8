"""The subcommand `specdec suffix`: says what is in a cache file, and joins such files; knows no model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from specdec_core.cli.output import emit
from specdec_core.cli.subcommand import run

HELP = "Look into cache files of suffix decoding, and join them."

Files = Annotated[list[Path], typer.Argument(help="Files that `save_cache` or this command wrote, the oldest first.")]


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments; raises RequestError for arguments that do not fit."""
    cli = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    cli.command("inspect")(inspect)
    cli.command("merge")(merge)
    return run(cli, args or ["--help"], "suffix")


def inspect(
    files: Files, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a file.")] = False
) -> None:
    """Show what is in cache files: responses and ids by namespace. No text is printed."""
    from specdec_plugin_suffix.cache_file import FILE, read

    for file in files:
        contents = read(file)
        responses, ids = Counter[str](), Counter[str]()
        for namespace, tokens in contents.texts:
            responses[namespace] += 1
            ids[namespace] += len(tokens)
        found = {
            "file": str(file),
            "version": FILE.version,
            "depth": contents.depth,
            "responses": responses.total(),
            "tokens": ids.total(),
            "largest_id": contents.vocabulary - 1,
            "namespaces": {name: {"responses": count, "tokens": ids[name]} for name, count in responses.items()},
        }
        if as_json:
            emit(json.dumps(found))
            continue
        print(f"{file}: {found['responses']} responses, {found['tokens']} tokens, ids up to {found['largest_id']}")
        for name, count in responses.items():
            print(f"  namespace {name!r}: {count} responses, {ids[name]} tokens")


def merge(out: Annotated[Path, typer.Option("--out", help="The file to write.")], files: Files) -> None:
    """Write the responses of all files into one, in the order of the files."""
    from specdec_plugin_suffix.cache_file import read, write

    contents = [read(file) for file in files]
    texts = [text for each in contents for text in each.texts]
    write(out, max(each.depth for each in contents), texts)
    print(f"{out}: {len(texts)} responses of {len(files)} files")
