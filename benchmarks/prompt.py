"""What a prompt costs until its first token: the engine against the model's own forward, on one machine in one process.

    python benchmarks/prompt.py path/to/model --length 512 --length 2000

Both take turns, so that a noisy machine is noisy for both; the figures are the best and the median of the rounds. The
model's own forward fills a cache and makes the logits of the last id alone, as `generate` has it.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from specdec_engine import LLM, SamplingParams
from specdec_nn.ops.cpu import choice


def first_token(llm: LLM, ids: list[int]) -> None:
    """Run a prompt and draw one token."""
    llm.generate({"prompt_token_ids": ids}, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)


def own_forward(model: Any, ids: list[int]) -> None:
    """Run a prompt through transformers."""
    with torch.inference_mode():
        model(torch.tensor([ids]), use_cache=True, logits_to_keep=1).logits.argmax(-1)


def main(
    model: Annotated[str, typer.Argument(help="A model's folder.")],
    length: Annotated[list[int] | None, typer.Option(help="Ids of the prompt; may be given again.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    out: Annotated[Path, typer.Option(help="JSON to write.")] = Path(__file__).parent / "results" / "prompt.json",
) -> None:
    """Time prompts of each length, and write a table and a JSON file."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    seconds: dict[tuple[int, str], list[float]] = {}
    lengths = length or [512, 2000]
    with LLM(model, dtype="bfloat16", max_num_seqs=1, disable_log_stats=True) as llm:
        arms = {"specdec": lambda ids: first_token(llm, ids), "transformers": lambda ids: own_forward(llm.model, ids)}
        for turn in range(repeats + 1):
            for count in lengths:
                ids = rng.integers(10, 20000, count).tolist()  # new ones each time: nothing is known of them
                for name in sorted(arms, reverse=bool(turn % 2)):
                    start = time.perf_counter()
                    arms[name](ids)
                    if turn:  # the first round compiles and warms up
                        seconds.setdefault((count, name), []).append(time.perf_counter() - start)
    table = Table("ids", "specdec ms", "transformers ms", "ratio", title="until the first token, best (median)")
    figures = []
    for count in lengths:
        best, middle = ({name: f(seconds[count, name]) * 1e3 for name in arms} for f in (min, statistics.median))
        cells = [f"{best[name]:.0f} ({middle[name]:.0f})" for name in arms]
        table.add_row(str(count), *cells, f"{best['specdec'] / best['transformers']:.2f}")
        figures.append({"ids": count, "best_ms": best, "median_ms": middle})
    Console().print(table)
    about = {"machine": platform.machine(), "cpu": choice.CHOSEN, "threads": threads, "torch": torch.__version__}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about, "prompts": figures}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
