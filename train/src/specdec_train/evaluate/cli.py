"""The subcommand `specdec train evaluate`: a head's agreement, accepted length and speed: a table, JSON and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_core.errors import RequestError


def evaluate(
    draft: Annotated[
        str,
        typer.Argument(metavar="RUN|DRAFT", help="A folder of `specdec train fit`, or a draft: folder, name, hub id."),
    ],
    model: Annotated[str, typer.Argument(help="The target: a folder, a .gguf file, or a hub id.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="File of prompts, as for `specdec bench`; may be given several times."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Collected data, whose held-out prompts are answered; left out: the run's own.")
    ] = None,
    held_out: Annotated[int, typer.Option(min=0, help="The most held-out prompts to answer.")] = 32,
    k: Annotated[int, typer.Option(min=1, help="Drafts of a step.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 96,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take so many prompts of each file, spread over tasks.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt of a file through the chat template.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here; left out for a run: RUN/evaluation.json.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page here; left out for a run: RUN/report.html.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    decode_width: Annotated[int | None, typer.Option(help="Fixed number of rows of every decode forward.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model, if it needs some.")
    ] = False,
    plugin: Annotated[list[str] | None, typer.Option(help="Unpackaged plugin, NAME=./mine.py.")] = None,
) -> int:
    """Measure a head: agreement by depth, accepted length by task, speed against plain decoding."""
    from specdec_core.cli.output import emit
    from specdec_engine.bench.arms import ModelOptions
    from specdec_engine.bench.summary import faults
    from specdec_engine.bench.table import lines
    from specdec_engine.cli import read_plugins
    from specdec_engine.sampling_params import SamplingParams
    from specdec_train.evaluate.report import page
    from specdec_train.evaluate.runs import is_run, open_run
    from specdec_train.evaluate.session import Evaluation, agreement_in_engine, read_prompts

    run = open_run(Path(draft)) if is_run(Path(draft)) else None
    settings: dict[str, Any] = {"draft": draft, "model": model, "k": k, "max_tokens": max_tokens, "chat": chat}
    settings |= {"dtype": dtype, "decode_width": decode_width, "prompts": [file.name for file in prompts or ()]}
    config: dict[str, Any] = {"model": draft if run is None else str(run.export), "num_speculative_tokens": k}
    if run is not None and "method" in run.settings:
        config["method"] = run.settings["method"]
    found = Evaluation(
        model=ModelOptions(
            model=model,
            dtype=dtype,
            device=device,
            decode_width=decode_width,
            trust_remote_code=trust_remote_code,
            plugins=read_plugins(plugin),
        ),
        config=config,
        prompts=read_prompts(prompts or (), limit, data or (run.data if run is not None else None), held_out),
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        chat=chat,
    ).run()
    measured = run.measured if run is not None else None
    agreement = {
        "held_out": None if measured is None else list(measured.agreement),
        "in_engine": agreement_in_engine(found["summary"]),
    }
    result = {"format": 1, "settings": settings, "agreement": agreement, **found}
    for line in lines([found["summary"]]):
        emit(line)
    for name, values in agreement.items():
        if values:
            emit(f"agreement by depth, {name.replace('_', ' ')}: {' '.join(f'{value:.3f}' for value in values)}")
    _write(
        json_file or (None if run is None else run.folder / "evaluation.json"),
        "--json",
        json.dumps(result, indent=1) + "\n",
    )
    _write(html or (None if run is None else run.folder / "report.html"), "--html", page(result, run))
    return int(faults([found["summary"]]) > 0)


def _write(file: Path | None, option: str, text: str) -> None:
    if file is None:
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{option} {file} cannot be written: {error.strerror or error}"
        raise RequestError(message) from error
