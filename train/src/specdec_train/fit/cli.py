"""The subcommand `specdec train fit`: reads its options and trains a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_core.errors import RequestError


def fit(
    data: Annotated[Path, typer.Argument(help="Folder that `specdec train collect` wrote.")],
    method: Annotated[str, typer.Option(help="Method of the head, of any plugin that has a trainer.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; one that was begun before is resumed.")],
    model: Annotated[str | None, typer.Option(help="The target. Left out: as the data name it.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Train on as many ids as fit into this time.")] = None,
    epochs: Annotated[float | None, typer.Option(min=0.01, help="Train on so many passes over the data.")] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="muon or adamw. Left out: muon where the device multiplies bfloat16 natively, else adamw."),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(min=0.0, help="Largest learning rate. Left out: 0.0025 with muon, 0.001 with adamw."),
    ] = None,
    batch_ids: Annotated[
        int | None, typer.Option(min=2, help="Ids of a batch. Left out: 2048 with muon, 768 with adamw.")
    ] = None,
    window: Annotated[int, typer.Option(min=2, help="Ids of a text that are read together, at most.")] = 256,
    steps: Annotated[int | None, typer.Option(min=1, help="Drafts that are trained: unrolled, or heads.")] = None,
    draft_vocab: Annotated[int | None, typer.Option(min=2, help="Ids that the head can draft.")] = None,
    intermediate: Annotated[int | None, typer.Option(min=1, help="Neurons of the head's MLP.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A further option of the method's trainer.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of first weights and of the order.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Left out: torch's own number.")] = None,
    compute: Annotated[
        str | None,
        typer.Option(
            help="Dtype of products: float32 or bfloat16. Left out: bfloat16 where the device has it natively."
        ),
    ] = None,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Ids between two measurements of agreement.")] = 20_000,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    plugin: Annotated[list[str] | None, typer.Option(help="Unpackaged plugin, NAME=./mine.py.")] = None,
) -> int:
    """Train a head on collected data; killed at any moment, the same command goes on where it was."""
    if (minutes is None) == (epochs is None):
        message = "give --minutes or --epochs, and not both"
        raise RequestError(message)
    if compute not in (None, "float32", "bfloat16"):
        message = f"--compute {compute!r} is unknown; expected float32 or bfloat16"
        raise RequestError(message)
    if optimizer not in (None, "muon", "adamw"):
        message = f"--optimizer {optimizer!r} is unknown; expected muon or adamw"
        raise RequestError(message)
    import torch

    from specdec_engine.cli import read_plugins
    from specdec_nn.hf.loading import resolve_device
    from specdec_train.data import Data
    from specdec_train.fit.optimizers import DEFAULTS, multiplies_bfloat16
    from specdec_train.fit.progress import Progress, shares
    from specdec_train.fit.session import Fitting
    from specdec_train.fit.settings import Settings

    if threads is not None:
        torch.set_num_threads(threads)
    named = {"steps": steps, "draft_vocab": draft_vocab, "intermediate": intermediate}
    options = {key: value for key, value in named.items() if value is not None} | read_pairs(option or [])
    opened = Data(data)
    native = multiplies_bfloat16(resolve_device(device))
    optimizer = optimizer or ("muon" if native else "adamw")
    batch_ids = batch_ids or DEFAULTS[optimizer].batch_ids
    wanted = Settings(
        method=method,
        options=options,
        target=model or opened.manifest.target,
        data=str(data.resolve()),
        shards=tuple(entry.sha256 for entry in opened.manifest.shards),
        ids=0,
        lanes=max(batch_ids // window, 1),
        width=min(window, batch_ids),
        optimizer=optimizer,
        lr=DEFAULTS[optimizer].lr if lr is None else lr,
        seed=seed,
        evaluate_every=evaluate_every,
        compute=compute or ("bfloat16" if native else "float32"),
        minutes=minutes,
    )
    fitting = Fitting(
        data=opened, folder=out, wanted=wanted, epochs=epochs, plugins=read_plugins(plugin), device=device
    )
    report = fitting.loop(Progress(), typer.echo).run()
    typer.echo(
        f"trained on {report.place.ids:,} ids in {report.place.seconds / 60:.1f} minutes; agreement by depth on "
        f"held-out texts: {shares(report.agreement)}; the head is in {out / 'export'}"
    )
    return 0


def read_pairs(given: list[str]) -> dict[str, Any]:
    """Return KEY=VALUE pairs; a value that is not JSON is a text. Raises RequestError for what is no pair."""
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            message = f"--option {text!r} is no KEY=VALUE"
            raise RequestError(message)
        try:
            found[key.replace("-", "_")] = json.loads(value)
        except ValueError:
            found[key.replace("-", "_")] = value
    return found
