"""Times the CPU kernels beside torch: linear layers of SmolLM2's shapes, attention over pages, the race.

    python benchmarks/kernels.py --dtype bfloat16

Every figure is the best of many calls, in microseconds. Kernel and baseline take turns, so that a busy machine slows
both, and their results are compared before they are timed.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numba
import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from specdec.nn.attention import AttentionStep, attention_reference
from specdec.nn.attention_numba import attention
from specdec.nn.linear import PackedLinear
from specdec.nn.linear_numba import linear
from specdec.nn.race import race_reference
from specdec.nn.race_numba import race
from specdec.noise import Noise

ROWS = (1, 4, 8, 16, 32, 256)
SHAPES = ((576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576))
SEGMENTS = {  # requests x (rows, keys before them)
    "1 row, no context": [(1, 0)],
    "1 row at 100": [(1, 100)],
    "1 row at 1000": [(1, 1000)],
    "1 row at 8000": [(1, 8000)],
    "8 rows at 100": [(8, 100)],
    "8 rows at 1000": [(8, 1000)],
    "8 x 1 row at 1000": [(1, 1000)] * 8,
    "8 x 8 rows at 300": [(8, 300)] * 8,
    "prompt of 512": [(512, 0)],
    "256 rows at 1000": [(256, 1000)],
}
Call = Callable[[], Tensor]
HEADS, KV_HEADS, DIMS, PAGE, VOCAB = 9, 3, 64, 32, 49152


@dataclass
class Figure:
    """One line of the table; times in microseconds a call."""

    op: str
    case: str
    kernel: float
    baseline: float
    baseline_name: str


def timed(calls: tuple[Call, ...], budget: float) -> list[float]:
    """Return the best time of each call; they take turns, ten calls each, until `budget` seconds are over."""
    best = [float("inf")] * len(calls)
    stop = time.perf_counter() + budget
    while time.perf_counter() < stop:
        for n, call in enumerate(calls):
            for _ in range(10):
                start = time.perf_counter()
                call()
                best[n] = min(best[n], (time.perf_counter() - start) * 1e6)
    return best


def compare(op: str, case: str, calls: tuple[Call, Call], baseline: str, budget: float, tolerance: float) -> Figure:
    """Check that kernel and baseline agree, then time both."""
    torch.testing.assert_close(calls[0](), calls[1](), rtol=tolerance, atol=tolerance)
    kernel, other = timed(calls, budget)
    return Figure(op, case, round(kernel, 1), round(other, 1), baseline)


def linear_figures(dtype: torch.dtype, budget: float) -> list[Figure]:
    """Time every shape at every number of rows."""
    figures = []
    for outputs, inputs in SHAPES:
        packed = PackedLinear((torch.randn(outputs, inputs) * inputs**-0.5).to(dtype))
        for rows in ROWS:
            x = torch.randn(rows, inputs).to(dtype)
            calls = partial(linear, x, packed), partial(F.linear, x, packed.weight)
            figures.append(compare("linear", f"[{outputs}, {inputs}] x {rows}", calls, "F.linear", budget, 0.05))
    return figures


def attention_figures(dtype: torch.dtype, budget: float) -> list[Figure]:
    """Time one layer's call for several batches."""
    figures = []
    for case, segments in SEGMENTS.items():
        pages = [-(-(rows + context) // PAGE) for rows, context in segments]
        first = np.cumsum([0, *pages])
        table = np.zeros((len(segments), max(pages)), np.int32)
        slots = []
        for s, (rows, context) in enumerate(segments):
            table[s, : pages[s]] = np.arange(first[s], first[s + 1])
            slots.append(first[s] * PAGE + context + np.arange(rows))
        rows_of, context_of = np.array(segments, np.int32).T.copy()
        start = np.cumsum([0, *rows_of[:-1]]).astype(np.int32)
        flat = np.concatenate(slots).astype(np.int32)
        step = AttentionStep(flat, start, rows_of, context_of, rows_of > 64, table, PAGE)
        q = torch.randn(1, HEADS, len(flat), DIMS).to(dtype)[0].transpose(0, 1)
        k, v = (torch.randn(len(flat), KV_HEADS, DIMS).to(dtype) for _ in range(2))
        k_pages, v_pages = (torch.randn(int(first[-1]), KV_HEADS, PAGE, DIMS).to(dtype) for _ in range(2))
        kernel, other = (
            partial(op, q, k, v, k_pages, v_pages, step, scaling=DIMS**-0.5) for op in (attention, attention_reference)
        )
        figures.append(compare("attention", case, (kernel, other), "reference", budget, 0.02))
    return figures


def race_figures(budget: float) -> list[Figure]:
    """Time one row and eight, over all ids and over fifty survivors."""
    figures = []
    for rows in (1, 8):
        noise = Noise(np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
        whole = torch.rand(rows, VOCAB)
        few = torch.zeros(rows, VOCAB)
        few[:, torch.randperm(VOCAB)[:50]] = 0.02
        for case, probs in ((f"{rows} x all of {VOCAB}", whole), (f"{rows} x 50 of {VOCAB}", few)):
            calls = partial(race, probs, noise, 0), partial(race_reference, probs, noise, 0)
            figures.append(compare("race", case, calls, "reference", budget, 0.0))
    return figures


def main(
    dtype: Annotated[str, typer.Option(help="bfloat16, float32 or float16.")] = "bfloat16",
    budget: Annotated[float, typer.Option(help="Seconds a figure.")] = 0.3,
    out: Annotated[Path, typer.Option(help="JSON to write.")] = Path(__file__).parent / "results" / "kernels.json",
) -> None:
    """Time the kernels and write a table and a JSON file."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    with torch.inference_mode():
        figures = [*linear_figures(kind, budget), *attention_figures(kind, budget), *race_figures(budget)]
    table = Table("op", "case", "kernel us", "baseline us", "baseline", "ratio", title=f"{dtype}, best of many")
    for figure in figures:
        times = str(figure.kernel), str(figure.baseline)
        table.add_row(figure.op, figure.case, *times, figure.baseline_name, f"{figure.baseline / figure.kernel:.1f}")
    Console().print(table)
    about = {"machine": platform.machine(), "threads": torch.get_num_threads(), "dtype": dtype}
    about |= {"torch": torch.__version__, "numba": numba.__version__}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about, "figures": [asdict(figure) for figure in figures]}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
