"""The subcommand `specdec train collect`: reads its options, builds the engine, prints what was collected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_core.cli.output import emit
from specdec_core.errors import RequestError

if TYPE_CHECKING:
    from specdec_core.sources import TargetInfo
    from specdec_train.collect.settings import Limits, Settings

DEFAULT_IDS = 500_000


def collect(
    model: Annotated[str, typer.Argument(help="Folder of the target, a .gguf file, or a hub id.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the data: a new one, or one that was begun before.")],
    prompts: Annotated[
        Path | None,
        typer.Option(help="File of prompts to answer, as for `specdec generate`; left out: starters of our own."),
    ] = None,
    ids: Annotated[int | None, typer.Option(min=1, help="End with the shard that reaches so many ids.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Begin no shard that would end later.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="The most ids of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="Of the answers that are not greedy.")] = 0.7,
    greedy: Annotated[float, typer.Option(min=0, max=1, help="The share of answers that are greedy.")] = 0.7,
    question_temperature: Annotated[float, typer.Option(min=0, help="Of questions that the target writes.")] = 0.9,
    share: Annotated[
        list[str] | None, typer.Option(help="Weight of a task, as TASK=WEIGHT; may be given several times.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Keep the states that a head of this method is trained on.")
    ] = None,
    aux_layers: Annotated[
        str | None,
        typer.Option(help="Keep the states after so many layers, such as 2,15,27; none: the last ones only."),
    ] = None,
    together: Annotated[int, typer.Option(min=1, help="Requests that are decoded at one time.")] = 32,
    shard_requests: Annotated[int, typer.Option(min=1, help="Requests of a shard.")] = 128,
    context: Annotated[int | None, typer.Option(min=18, help="The most ids of a prompt and its answer.")] = None,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Use the chat template, if there is one.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model, if it needs some.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell sizes and bytes, and write nothing.")] = False,
) -> int:
    """Let the target write questions and answers, or answer prompts, and keep its states on disk."""
    from specdec_engine.bench.arms import ModelOptions, describe_target
    from specdec_engine.text.prompt_files import read_file
    from specdec_train.collect.settings import Limits, Settings
    from specdec_train.collect.starters.tasks import read_shares

    if aux_layers is not None and method is not None:
        message = "--method and --aux-layers both choose the states to keep: leave one out"
        raise RequestError(message)
    if prompts is not None and share:
        message = "--share weighs starters of our own, and --prompts takes their place: leave one out"
        raise RequestError(message)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    options = ModelOptions(model=model, dtype=dtype, device=device, trust_remote_code=trust_remote_code, plugins={})
    target = describe_target(options)
    settings = Settings(
        aux_layers=_layers(aux_layers, method, target),
        max_tokens=max_tokens,
        temperature=temperature,
        greedy=greedy,
        question_temperature=question_temperature,
        together=together,
        shard_requests=shard_requests,
        context=_context(context, target),
        seed=seed,
        shares=read_shares(share or ()),
        prompts=None if prompts is None else tuple(found.text for found in read_file(prompts)),
        chat=chat,
    )
    settings.check()
    own_end = ids is not None or minutes is not None or prompts is not None
    limits = Limits(ids if own_end else DEFAULT_IDS, minutes)
    if dry_run:
        return _forecast(options, target, settings, limits)
    return _collect(options, target, settings, limits, out)


def _forecast(options: Any, target: TargetInfo, settings: Settings, limits: Limits) -> int:
    from specdec_engine.loading import Wanted, read_config
    from specdec_train.collect.prompts import Prompter
    from specdec_train.collect.report import forecast

    source, _ = read_config(options.model, None, None, options.trust_remote_code)
    prompter = Prompter(Wanted().load(source), frozenset({0}), chat=settings.chat)
    for line in forecast(settings.manifest(target), settings, limits, prompter):
        emit(line)
    return 0


def _collect(options: Any, target: TargetInfo, settings: Settings, limits: Limits, out: Path) -> int:
    from specdec_train.collect.building import engine
    from specdec_train.collect.decode import Decoder
    from specdec_train.collect.progress import Progress
    from specdec_train.collect.prompts import Prompter
    from specdec_train.collect.report import by_task
    from specdec_train.collect.session import Session
    from specdec_train.data import Data, Writer

    manifest = settings.manifest(target)
    before = Writer(out, manifest).manifest  # what is wrong with the folder is reported before the model is loaded
    if limits.ids is None or before.ids < limits.ids:
        with engine(options, settings) as (llm, keeper, end_ids), Progress(limits) as progress:
            prompter = Prompter(llm.tokenizer, end_ids, chat=settings.chat)
            session = Session(out, manifest, settings, prompter, Decoder(llm, keeper, progress.step), progress)
            progress.resumed(session.manifest)
            session.run(limits)
    for line in by_task(Data(out)):
        emit(line)
    return 0


def _layers(aux_layers: str | None, method: str | None, target: TargetInfo) -> tuple[int, ...]:
    from specdec_train.collect.settings import default_aux_layers, read_aux_layers
    from specdec_train.fit.finding import find_training

    if method is not None:
        return find_training(method).aux_layers(target)
    if aux_layers is not None:
        return read_aux_layers(aux_layers, target.num_layers)
    return default_aux_layers(target.num_layers)


def _context(context: int | None, target: TargetInfo) -> int:
    most = target.max_model_len
    if context is not None and context > most:
        message = f"--context {context} is above the target's own limit of {most} positions"
        raise RequestError(message)
    return min(most, 2048) if context is None else context
