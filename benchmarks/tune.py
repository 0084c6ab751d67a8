"""Does `specdec tune` predict well? Predicted speed-ups of configurations that it has not run, beside measured ones.

    python benchmarks/tune.py --prompts data/spec_bench_dev.jsonl

SmolLM2-135M (bfloat16). n-gram and suffix decoding are profiled as the command does it. Then configurations that were
not run, with other numbers of drafts and of prompts at once, are predicted and run, arms interleaved over prompts. With
`--sweep` all numbers of drafts are run, one prompt at a time, and the one predicted to be best is compared with the one
that is. Nothing else may run beside this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

from specdec_core.sources import TargetInfo
from specdec_engine import SamplingParams
from specdec_engine.bench.arms import ModelOptions, describe_target
from specdec_engine.bench.methods import Method
from specdec_engine.bench.prompts import load_prompts, units_of
from specdec_engine.bench.session import machine
from specdec_engine.bench.summary import ratio_text
from specdec_engine.tune.candidates import Candidate, find_candidates
from specdec_engine.tune.choose import Option, best
from specdec_engine.tune.session import Tuning

METHODS = (
    Method("ngram", {"method": "ngram", "num_speculative_tokens": 12, "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
    Method("suffix", {"method": "suffix", "num_speculative_tokens": 16, "suffix_decoding_max_spec_factor": 2.0}),
)
WITHIN = 0.10
RESULTS = Path("benchmarks/results/tune.json")


def not_run(options: Sequence[Option], candidates: Sequence[Candidate], count: int) -> list[Option]:
    """Return so many options, spread over those that the profile did not run."""
    ran = {(each.label, limit, 1) for each in candidates for limit in each.measured}
    others = [option for option in options if (option.label, option.limit, option.concurrency) not in ran]
    count = min(count, len(others))
    return [others[i * len(others) // count] for i in range(count)]


def show(measured: Sequence[Option], console: Console) -> dict[str, Any]:
    """Print the options with their errors; return the figures."""
    table = Table("method", "k", "at once", "predicted", "measured", "error")
    errors = []
    for option in measured:
        assert option.measured is not None
        errors.append(option.predicted.value / option.measured.value - 1)
        texts = (ratio_text(option.predicted), ratio_text(option.measured), f"{100 * errors[-1]:+.1f} %")
        table.add_row(option.label, str(option.limit), str(option.concurrency), *texts)
    console.print(table)
    good = sum(abs(error) <= WITHIN for error in errors)
    console.print(f"within {100 * WITHIN:.0f} %: {good} of {len(errors)}")
    return {"within": good, "of": len(errors), "errors": errors}


def key(option: Option) -> tuple[str, int, int]:
    """Return what an option is of."""
    return option.label, option.limit, option.concurrency


def compare(measured: Sequence[Option], options: Sequence[Option], console: Console) -> float:
    """Print what is predicted to be best, one at a time, beside what is; return the quotient of their speeds."""
    wish, top = best(options, 1), best(measured, 1)
    assert wish is not None and top is not None
    picked = next(option for option in measured if key(option) == key(wish))
    console.print(
        f"predicted best, one at a time: {picked.label} k={picked.limit}, {picked.speed_up:.2f} x plain; "
        f"measured best: {top.label} k={top.limit}, {top.speed_up:.2f} x plain"
    )
    return picked.speed_up / top.speed_up


def run(
    tuning: Tuning, target: TargetInfo, candidates: Sequence[Candidate], count: int, sweep: bool
) -> tuple[list[Option], list[Option], list[Option], dict[str, Any]]:
    """Return all options, those that were not run, what was measured of them and of the sweep, and the machine."""
    by_label = {each.label: each for each in candidates}
    measured: list[Option] = []
    with tuning.opened(target, max(tuning.concurrency), tuning.most_drafts) as (plain, work):
        options = tuning.options(candidates, tuning.profile(plain, candidates, work))
        chosen = not_run(options, candidates, count)
        all_ = chosen + [option for option in options if sweep and option.concurrency == 1 and option not in chosen]
        for size in tuning.concurrency:
            wanted = [option for option in all_ if option.concurrency == size]
            methods = [by_label[option.label].at(option.limit) for option in wanted]
            ratios = tuning.measure(plain, methods, work, units_of(tuning.prompts, size))
            measured += [replace(option, measured=ratio) for option, ratio in zip(wanted, ratios, strict=True)]
        return options, chosen, measured, machine(plain.llm)


def main(
    prompts: Annotated[Path, typer.Option(help="Spec-Bench questions, one JSON object a line.")],
    limit: Annotated[int, typer.Option(help="Prompts, spread over the tasks.")] = 18,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each answer, at most.")] = 64,
    together: Annotated[int, typer.Option(help="Prompts at once, besides one.")] = 4,
    configurations: Annotated[int, typer.Option(help="Configurations that are predicted and run.")] = 10,
    sweep: Annotated[bool, typer.Option("--sweep", help="Run every number of drafts, one prompt at a time.")] = False,
    threads: Annotated[int, typer.Option(help="Threads.")] = 2,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = RESULTS,
) -> None:
    """Predict, run, compare, print, write JSON."""
    torch.set_num_threads(threads)
    console = Console(width=160)
    tuning = Tuning(
        model=ModelOptions(model=str(model_folder()), plugins={}),
        prompts=load_prompts(prompts, limit),
        methods=METHODS,
        concurrency=(1, together),
        params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        chat=True,
        most_drafts=16,
        confirm=0,
        out=None,
    )
    target = describe_target(tuning.model)
    candidates, _ = find_candidates(METHODS, tuning.most_drafts, target, {})
    options, chosen, measured, about = run(tuning, target, candidates, configurations, sweep)
    keys = [key(option) for option in chosen]
    figures = show([option for option in measured if key(option) in keys], console)
    if sweep:
        figures["choice_over_best"] = compare(measured, options, console)
    out.parent.mkdir(parents=True, exist_ok=True)
    data = {"machine": about, "figures": figures, "measured": [asdict(each) for each in measured]}
    out.write_text(json.dumps({**data, "predicted": [asdict(each) for each in options]}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
