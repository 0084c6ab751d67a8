"""The subcommand `specdec train export`: the head of a run as a folder that engines read, with its card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_core.errors import RequestError


def export(
    run: Annotated[Path, typer.Argument(help="A folder of `specdec train fit`.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    target: Annotated[
        str | None, typer.Option(help="The target's name, for draft.json; left out: what the run's data name.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Drafts of a step where a user names no number, for draft.json.")] = 3,
    about: Annotated[str, typer.Option(help="A sentence about the head, for draft.json.")] = "",
) -> None:
    """Write a trained head in the layout that engines read: config.json, weights, and draft.json beside them."""
    from specdec_core.cli.output import emit
    from specdec_core.registry.drafts import CARD
    from specdec_train.evaluate.runs import open_run
    from specdec_train.fit.exporting import export_run

    found = open_run(run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        message = f"--out {out} is there already and is not an empty folder; name a new one"
        raise RequestError(message)
    card: dict[str, Any] = {"target": target or _target(found.settings, found.data), "method": found.settings["method"]}
    card |= {"num_speculative_tokens": k, "about": about}
    export_run(run, out)
    (out / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    emit(f"{out}: a draft of {card['method']} for {card['target']}")
    config = json.dumps({"model": str(out)})
    emit(f"to use it: --speculative-config '{config}'")


def _target(settings: Any, data: Path | None) -> str:
    """Return the target's name as the run has it, or its data."""
    if isinstance(settings.get("target"), str):
        return str(settings["target"])
    if data is None:
        message = "the run's settings name no target; give --target NAME"
        raise RequestError(message)
    from specdec_train.data import Manifest

    return Manifest.read(data).target
