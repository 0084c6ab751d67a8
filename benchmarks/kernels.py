"""Times the CPU kernels beside torch: linear layers of SmolLM2's shapes, attention over pages, the race, token trees.

    python benchmarks/kernels.py --dtype bfloat16
    SPECDEC_CPU=avx2 python benchmarks/kernels.py --dtype bfloat16

Every figure is the best of many calls, in microseconds. Kernel and baseline take turns, so that a busy machine slows
both, and their results are compared before they are timed. Trees are timed beside chains of as many nodes, which give
other results: their table's goals are a ratio of at least 0.91, and 300 us for `compact`.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_core.noise import Noise
from specdec_nn.cache.arena import KVArena, Segment
from specdec_nn.ops.ancestor_bits.numba import ancestor_bits
from specdec_nn.ops.ancestor_bits.reference import ancestor_bits_reference
from specdec_nn.ops.attention.numba import attention
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference
from specdec_nn.ops.compact.numba import compact
from specdec_nn.ops.compact.reference import compact_reference
from specdec_nn.ops.cpu.choice import CHOSEN
from specdec_nn.ops.linear.numba import linear
from specdec_nn.ops.linear.reference import PackedLinear
from specdec_nn.ops.race.numba import race
from specdec_nn.ops.race.reference import race_reference

ROWS = (1, 4, 8, 16, 32, 512)
SHAPES = ((576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576))
COLD = 256 * 2**20  # bytes of weights that go by between two uses of one, as in a model
COLD_SHAPES = ((576, 576), (1536, 576), (576, 1536), (4864, 896), (3072, 1024), (2048, 2048))
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
Call = Callable[[], Any]
HEADS, KV_HEADS, DIMS, PAGE, VOCAB, LAYERS = 9, 3, 64, 32, 49152, 30
# Four children, each with two, and one below four of those.
TREE = np.array([-1] * 4 + [0, 0, 1, 1, 2, 2, 3, 3] + [4, 6, 8, 10], np.int32)
PATH = np.array([3, 11, 15], np.int32)


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


def cold_figures(dtype: torch.dtype, passes: int = 6) -> list[Figure]:
    """Time 8, 16 and 32 rows beside one row, with weights that are in no cache: the mean of each weight's best time."""
    figures = []
    for outputs, inputs in COLD_SHAPES:
        layers = [PackedLinear(torch.randn(outputs, inputs).to(dtype)) for _ in range(COLD // (outputs * inputs * 2))]
        best = {rows: np.full(len(layers), np.inf) for rows in (1, 8, 16, 32)}
        for _ in range(passes):
            for rows, times in best.items():
                x = torch.randn(rows, inputs).to(dtype)
                for n, packed in enumerate(layers):
                    start = time.perf_counter()
                    linear(x, packed)
                    times[n] = min(times[n], (time.perf_counter() - start) * 1e6)
        one = round(float(best.pop(1).mean()), 1)
        for rows, times in best.items():
            case = f"[{outputs}, {inputs}] x {rows}, weights in no cache"
            figures.append(Figure("linear", case, round(float(times.mean()), 1), one, "1 row"))
    return figures


def attention_step(segments: list[tuple[int, int]], parents: IntArray | None = None) -> AttentionStep:
    """Return the tables of a batch of (rows, keys before them), each a tree with these parents if they are given."""
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
    if parents is not None:
        whole = torch.from_numpy(np.tile(parents, len(segments)))
        step.seg_tree = context_of
        step.ancestors = ancestor_bits(whole, [len(parents)] * len(segments)).numpy()
    return step


def attention_inputs(step: AttentionStep, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random queries, keys, values and pages for the tables of a step."""
    rows, pages = len(step.slots), int(step.page_table.max()) + 1
    q = torch.randn(1, HEADS, rows, DIMS).to(dtype)[0].transpose(0, 1)
    k, v = (torch.randn(rows, KV_HEADS, DIMS).to(dtype) for _ in range(2))
    return q, k, v, *(torch.randn(pages, KV_HEADS, PAGE, DIMS).to(dtype) for _ in range(2))


def attention_figures(dtype: torch.dtype, budget: float) -> list[Figure]:
    """Time one layer's call for several batches."""
    figures = []
    for case, segments in SEGMENTS.items():
        step = attention_step(segments)
        inputs = attention_inputs(step, dtype)
        kernel, other = (partial(op, *inputs, step, scaling=DIMS**-0.5) for op in (attention, attention_reference))
        figures.append(compare("attention", case, (kernel, other), "reference", budget, 0.02))
    return figures


def tree_figures(dtype: torch.dtype, budget: float) -> list[Figure]:
    """Time trees of 16 nodes beside chains of 16 drafts, and moving an accepted path in all layers."""
    figures = []
    for requests, context in ((1, 100), (1, 1000), (8, 300)):
        steps = [attention_step([(1 + len(TREE), context)] * requests, parents) for parents in (TREE, None)]
        inputs = attention_inputs(steps[0], dtype)
        tree, chain = timed(tuple(partial(attention, *inputs, step, scaling=DIMS**-0.5) for step in steps), budget)
        case = f"{requests} x 16 nodes at {context}"
        figures.append(Figure("attention", case, round(tree, 1), round(chain, 1), "chain"))
    for requests in (1, 8):
        parents, lengths = torch.from_numpy(np.tile(TREE, requests)), [len(TREE)] * requests
        calls = partial(ancestor_bits, parents, lengths), partial(ancestor_bits_reference, parents, lengths)
        figures.append(compare("ancestor_bits", f"{requests} x 16 nodes", calls, "reference", budget, 0.0))
        kernel, other = (_keep(op, dtype, requests) for op in (compact, compact_reference))
        case = f"{requests} x {len(PATH)} of 16 nodes, {LAYERS} layers"
        figures.append(compare("compact", case, (kernel, other), "reference", budget, 0.0))
    return figures


def _keep(op: Callable[..., None], dtype: torch.dtype, requests: int) -> Call:
    """Return a call that keeps a path for each request in an arena of its own; it gives the first layer's keys."""
    arena, segments = KVArena(1024 * requests, torch.device("cpu"), compact=op), [Segment() for _ in range(requests)]
    row = torch.zeros(1, KV_HEADS, DIMS, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for layer in range(LAYERS):
        for pages in arena.layer(layer, row, row):
            pages.copy_(torch.randn(pages.shape, generator=generator))
    for segment in segments:
        arena.reserve(segment, 1000)

    def keep() -> Tensor:
        arena.keep((segment, 900, PATH) for segment in segments)
        return arena.layer(0, row, row)[0]

    return keep


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
        figures = [
            *linear_figures(kind, budget),
            *cold_figures(kind),
            *attention_figures(kind, budget),
            *race_figures(budget),
        ]
        figures += tree_figures(kind, budget)
    table = Table(
        "op", "case", "kernel us", "baseline us", "baseline", "ratio", title=f"{dtype}, {CHOSEN}, best of many"
    )
    for figure in figures:
        times = str(figure.kernel), str(figure.baseline)
        table.add_row(figure.op, figure.case, *times, figure.baseline_name, f"{figure.baseline / figure.kernel:.2f}")
    Console().print(table)
    about = {"machine": platform.machine(), "threads": torch.get_num_threads(), "dtype": dtype}
    about |= {"instructions": CHOSEN}
    about |= {"torch": torch.__version__, "numba": numba.__version__}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about, "figures": [asdict(figure) for figure in figures]}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
