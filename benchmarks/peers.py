"""specdec beside transformers, vLLM and llama.cpp on SmolLM2-135M (bfloat16): speeds, first tokens, forwards, by task.

    python benchmarks/peers.py --prompts data/spec_bench_dev.jsonl

Each library runs in a process of its own, which is stopped (SIGSTOP) while another one works. Every prompt goes through
every arm before the next prompt comes; the order of arms turns by one each time. A library that is not installed is
skipped, with the reason. Nothing else may run beside this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

from peer_bench.arms import REMEMBERING, ROOT, programs
from peer_bench.figures import figures
from peer_bench.machine import Load, machine
from peer_bench.measure import Run, measure, say, started
from peer_bench.picture import picture
from specdec_engine.bench.prompts import BenchPrompt, load_prompts
from specdec_engine.bench.summary import ratio_text

MAX_MODEL_LEN = 2304
RESULTS = Path("benchmarks/results/peers.json")
MET = {None: "-", True: "yes", False: "no"}


def encoded(folder: str, prompts: Sequence[BenchPrompt]) -> tuple[list[tuple[str, list[int]]], list[int]]:
    """Return (task, ids) of the prompts, a task's turn after the other's, and the ids that end an answer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    by_task: dict[str, list[tuple[str, list[int]]]] = {}
    for prompt in prompts:
        messages = [{"role": "user", "content": prompt.text}]
        chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        by_task.setdefault(prompt.task, []).append((prompt.task, list(chat["input_ids"])))
    mixed = [each for each in chain.from_iterable(zip_longest(*by_task.values())) if each is not None]
    return mixed, [tokenizer.eos_token_id]


def plain_data(run: Run, about: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "settings": settings,
        "machine": machine(),
        "load": run.load.ended(),
        "libraries": about,
        "skipped": run.skipped,
        "figures": figures(run, settings["together"]),
        "rows": [{name: value for name, value in vars(row).items() if name != "answers"} for row in run.rows],
    }


def show(data: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    found = data["figures"]
    parts = list(dict.fromkeys(chain.from_iterable(found["tokens_per_second"].values())))
    speeds = Table("tokens/s", *parts)
    for arm, each in found["tokens_per_second"].items():
        speeds.add_row(arm, *("-" if each.get(part) is None else f"{each[part]:.1f}" for part in parts))
    console.print(speeds)
    for title, name in (("over plain specdec", "over_specdec"), ("over the library's own plain", "over_own_plain")):
        ratios = Table(title, *parts)
        for arm, each in found[name].items():
            ratios.add_row(arm, *(ratio_text(each.get(part)) for part in parts))
        console.print(ratios)
    for arm, by_rows in found["forward_ms"].items():
        console.print(f"{arm}, ms a forward by rows:", {count: round(value, 1) for count, value in by_rows.items()})
    for section, by_arm in found["first_token_ms"].items():
        texts = [f"{arm} {median:.0f} ({least:.0f} to {most:.0f})" for arm, (least, median, most) in by_arm.items()]
        console.print(f"{section}, ms to the first token: " + ", ".join(texts))
    wanted = Table("figure", "wanted", "measured (90 %)", "met")
    for goal in found["goals"]:
        value = None if goal["value"] is None else {name: goal[name] for name in ("value", "low", "high")}
        wanted.add_row(goal["figure"], goal["wanted"], ratio_text(value), MET[goal["met"]])
    console.print(wanted)
    for arm, (same, of) in found["same"].items():
        console.print(f"{arm}: {same} of {of} answers are those of the library's plain decoding")
    for arm, reason in data["skipped"].items():
        console.print(f"skipped: {arm}: {reason}")
    console.print(data["machine"], data["load"])


def main(
    prompts: Annotated[Path, typer.Option(help="Spec-Bench questions, one JSON object a line.")],
    limit: Annotated[int, typer.Option(help="Prompts, spread over the tasks.")] = 30,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each answer, at most.")] = 96,
    threads: Annotated[int, typer.Option(help="Threads of every library.")] = 2,
    together: Annotated[int, typer.Option(help="Prompts that are asked at one time, where that is measured.")] = 8,
    turns: Annotated[int, typer.Option(help="Times that forwards and first tokens are timed.")] = 5,
    vllm_python: Annotated[Path, typer.Option(help="A Python that has vLLM.")] = ROOT / ".venv-vllm/bin/python",
    llama_python: Annotated[Path, typer.Option(help="A Python that has llama-cpp-python.")] = Path(sys.executable),
    inside_vllm: Annotated[bool, typer.Option("--inside-vllm", help="Our methods in vLLM, too.")] = False,
    eager: Annotated[bool, typer.Option("--eager", help="Do not let vLLM compile the model.")] = False,
    out: Annotated[Path, typer.Option(help="JSON; the picture goes beside it.")] = RESULTS,
) -> None:
    """Run the comparison, print tables, write JSON and a picture."""
    folder = str(model_folder())
    chosen, stops = encoded(folder, load_prompts(prompts, limit))
    settings: dict[str, Any] = {
        "model": folder,
        "threads": threads,
        "max_tokens": max_tokens,
        "max_model_len": MAX_MODEL_LEN,
        "together": together,
        "eager": eager,
        "stop_ids": stops,
        "remembers": list(REMEMBERING),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    load = Load()
    wanted = programs(vllm_python, llama_python, inside_vllm)
    with started(wanted, settings, out.parent, load) as (run, about):

        def write() -> None:
            out.write_text(json.dumps(plain_data(run, about, settings), indent=1), encoding="utf-8")

        run.written = write
        measure(run, chosen, together, turns)
    data = plain_data(run, about, settings)
    out.write_text(json.dumps(data, indent=1), encoding="utf-8")
    out.with_suffix(".svg").write_text(picture(data["figures"]), encoding="utf-8")
    show(data, Console(width=200))
    say(f"written: {out} and {out.with_suffix('.svg')}")


if __name__ == "__main__":
    typer.run(main)
