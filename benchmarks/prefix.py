"""Prefix reuse on SmolLM2: time to the first token of a request whose prefix is known, and of samples of one prompt.

    python benchmarks/prefix.py --prefix 1500 --repeats 5

Each repeat takes a prefix that no engine has seen. The arms take turns on it: an engine that reuses prefixes, one that
does not, and one with a decode width that does.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from specdec_engine import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

QUESTION = 24  # ids behind the prefix, which differ between the requests of a repeat
ARMS: dict[str, dict[str, Any]] = {
    "reuse": {},
    "no reuse": {"enable_prefix_caching": False},
    "reuse, decode_width 8": {"decode_width": 8},
}


def first_token(llm: LLM, ids: list[int], n: int = 1) -> tuple[float, Any]:
    """Return the seconds until each of n samples has its first token, and the output."""
    sampling = SamplingParams(temperature=0.8, seed=1, n=n, max_tokens=1, ignore_eos=True)
    start = perf_counter()
    (output,) = llm.generate([ids], sampling, use_tqdm=False)
    return perf_counter() - start, output


def measure(llm: LLM, prefix: list[int], questions: list[list[int]], n: int) -> dict[str, float]:
    """Return seconds of a first and a second request with a prefix, and of n samples of a prompt nobody knows."""
    seconds, cached = {}, {}
    for name, question in zip(("first", "second"), questions, strict=False):
        seconds[name], output = first_token(llm, prefix + question)
        cached[name] = output.num_cached_tokens
    seconds[f"{n} samples"], _ = first_token(llm, questions[2] + prefix, n)
    return {**seconds, "cached": cached["second"]}


def table_of(summary: dict[str, dict[str, float]], n: int) -> Table:
    table = Table(title="milliseconds to the first token, medians of the repeats")
    for heading in ("arm", "first", "second", "second / first", f"{n} samples", f"{n} samples / first", "ids reused"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, figures in summary.items():
        times = [f"{1e3 * figures[name]:.0f}" for name in ("first", "second", f"{n} samples")]
        ratios = [f"{figures[name]:.2f}" for name in ("second / first", f"{n} samples / first")]
        table.add_row(arm, times[0], times[1], ratios[0], times[2], ratios[1], f"{figures['cached']:.0f}")
    return table


def main(
    prefix: Annotated[int, typer.Option(help="Ids that the two requests of a repeat share.")] = 1500,
    samples: Annotated[int, typer.Option(help="Samples of one prompt.")] = 4,
    repeats: Annotated[int, typer.Option(help="Prefixes that each arm is timed on, after one that warms it up.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    out: Annotated[Path, typer.Option(help="JSON to write.")] = Path(__file__).parent / "results" / "prefix.json",
) -> None:
    """Time all arms in turns, print a table, write JSON."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    tokens = (samples + 2) * (prefix + 64)
    engines: dict[str, LLM] = {}
    for arm, arguments in ARMS.items():
        shared = {"hf_model": engines["reuse"].model} if engines else {}
        engines[arm] = LLM(str(model_folder()), kv_cache_tokens=tokens, disable_log_stats=True, **shared, **arguments)
    vocab_size = engines["reuse"].model.config.vocab_size
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in engines}
    for repeat in range(repeats + 1):
        ids = rng.integers(100, vocab_size, prefix).tolist()
        questions = rng.integers(100, vocab_size, (3, QUESTION)).tolist()
        for arm, llm in engines.items():
            times = measure(llm, ids, questions, samples)
            if repeat:
                found[arm].append(times)
    summary = {}
    for arm, runs in found.items():
        figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for name in ("second", f"{samples} samples"):
            figures[f"{name} / first"] = statistics.median(run[name] / run["first"] for run in runs)
        summary[arm] = figures
    console = Console()
    console.print(table_of(summary, samples))
    out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"prefix": prefix, "question": QUESTION, "samples": samples, "threads": threads}
    versions = {"machine": platform.machine(), "torch": torch.__version__}
    out.write_text(json.dumps({**versions, **settings, "summary": summary, "repeats": found}, indent=1))
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
