"""What a grammar costs in a step, on SmolLM2's vocabulary of 49152 ids: compiling, cutting drafts, masks, their use.

    python benchmarks/structured.py --rows 1 --rows 6

A request with a form stands at every place of a right answer in turn; its drafts are what comes next in the answer.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import llguidance
import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.grammar_mask import forbid
from specdec_engine.sampling.grammar_state import GrammarState
from specdec_engine.sampling.grammars import Grammars
from specdec_engine.sampling_params import SamplingParams, StructuredOutputsParams

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["new", "known", "long gone"]}},
        "address": ADDRESS,
    },
    "required": ["name", "age", "tags", "address"],
}
ANSWER = '{"name": "Ann Lee", "age": 41, "tags": ["new", "long gone"], "address": {"street": "Hill 5", "zip": "12345"}}'
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "choice": ({"choice": ["positive", "negative", "neutral"]}, "negative"),
    "regex": ({"regex": r"[A-Z][a-z]+ [A-Z][a-z]+, \d{4}-\d{2}-\d{2}"}, "Ann Lee, 1983-07-21"),
    "json": ({"json": PERSON}, ANSWER),
    "json_object": ({"json_object": True}, ANSWER),
    "grammar": ({"grammar": 'root ::= [a-z]+ " = " [0-9]+ (" + " [0-9]+)*'}, "total = 12 + 7 + 30"),
}


@dataclass
class Cost:
    """Costs of one form: milliseconds once, microseconds a row of logits; cutting per draft."""

    form: str
    rows: int
    compile_ms: float
    cut_us: float
    mask_us: float
    masked_logits_us: float


def grammar_mask_cost(rows: int, repeats: int, tokenizer: Any, vocab_size: int) -> list[Cost]:
    """Time every form for a request with `rows` rows: its newest id and the drafts behind it."""
    logits = torch.randn(rows, vocab_size)
    costs = []
    for name, (form, answer) in FORMS.items():
        grammars = Grammars(tokenizer, vocab_size, frozenset([tokenizer.eos_token_id]))
        assert grammars.start(asked({"regex": "a"})) is not None, "reads the vocabulary, which is no part of compiling"
        start = perf_counter()
        state = grammars.start(asked(form))
        compile_ms = 1e3 * (perf_counter() - start)
        ids = np.array([*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id], np.int32)
        times = []
        for place in range(max(1, len(ids) - rows)):
            work = work_of(asked(form), ids, place, rows)
            times.append(time_place(work, state, logits, repeats))
            state.commit([int(ids[place])])
        costs.append(Cost(name, rows, compile_ms, *(1e6 * float(figure) for figure in np.mean(times, axis=0))))
    return costs


def time_place(
    work: ScheduledRows, state: GrammarState, logits: torch.Tensor, repeats: int
) -> tuple[float, float, float]:
    """Return seconds of cutting for a draft, and of masks without and with their use for a row."""
    paths = [work.path(row) for row in range(work.wants)]
    cut = least(repeats, lambda: state.legal(paths[-1])) / max(1, work.num_draft)
    mask = least(repeats, lambda: state.masks(paths)) / work.wants
    use = least(repeats, lambda: forbid(logits[: work.wants], [(0, work, state)])) / work.wants
    return cut, mask, use


def asked(form: dict[str, Any]) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**form))


def work_of(params: SamplingParams, ids: np.ndarray, place: int, rows: int) -> ScheduledRows:
    """The rows of a request that has emitted `place` ids and drafts the next ones."""
    request = Request("0", 0, np.array([1], np.int32), params, 0, 0)
    drafts = ids[place : place + rows - 1]
    return ScheduledRows(
        request, 0, np.concatenate(([1], drafts)).astype(np.int32), False, len(drafts), 1 + len(drafts)
    )


def least(repeats: int, call: Callable[[], Any]) -> float:
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def table_of(costs: list[Cost]) -> Table:
    table = Table(title="a grammar in a step: microseconds a row, cutting a draft")
    for heading in ("form", "rows", "compile ms", "cut", "mask", "mask and logits"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    for cost in costs:
        figures = (cost.compile_ms, cost.cut_us, cost.mask_us, cost.masked_logits_us)
        table.add_row(cost.form, str(cost.rows), *(f"{figure:.1f}" for figure in figures))
    return table


def main(
    rows: Annotated[list[int], typer.Option(help="Rows of the request in a step; may be repeated.")] = [1, 6],  # noqa: B006
    repeats: Annotated[int, typer.Option(help="Calls at each place, of which the quickest counts.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    out: Annotated[Path, typer.Option(help="JSON to write.")] = Path(__file__).parent / "results" / "structured.json",
) -> None:
    """Time all forms, print a table, write JSON."""
    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(model_folder(), trust_remote_code=False)
    costs = [cost for n in rows for cost in grammar_mask_cost(n, repeats, tokenizer, len(tokenizer))]
    console = Console()
    console.print(table_of(costs))
    out.parent.mkdir(parents=True, exist_ok=True)
    versions = {"machine": platform.machine(), "torch": torch.__version__, "llguidance": llguidance.__version__}
    out.write_text(json.dumps({**versions, "threads": threads, "costs": [asdict(cost) for cost in costs]}, indent=1))
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
