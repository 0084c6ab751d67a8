"""What a sampled row costs after the forward, by what its request asks for, and what verifying eight rows costs.

    python benchmarks/sampling.py --rows 1 --rows 8

A request of 1000 distinct ids stands behind an output of 200; its rows are those of its newest id and of drafts. Costs
are the best of many calls. What a grammar costs is measured by `structured.py`.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numba
import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from specdec_core.config.resolve import resolve
from specdec_core.draft import Draft
from specdec_core.host.factory import make_verifier
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_engine.sampling.pipeline import PipelineCompiler
from specdec_engine.sampling.sampler import Sampler
from specdec_engine.sampling.state import SamplingState
from specdec_engine.sampling_params import SamplingParams
from specdec_testing.stubs import Fixed, stub_plugin

VOCAB, KNOWN, OUTPUT = 49152, 1000, 200


def forbid_one(output: Any, logits: Any) -> Any:
    """A processor that does next to nothing: what is left is the cost of asking."""
    logits[7] = -torch.inf
    return logits


PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}
WORDS = {"bad_words": [[i, i + 1, i + 2] if i % 2 else [i] for i in range(40)]}
TRUNCATED = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k 50, top_p 0.9": TRUNCATED,
    "top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "penalties": {**TRUNCATED, **PENALTIES},
    "bad words": {**TRUNCATED, **WORDS},
    "logit bias": {**TRUNCATED, "logit_bias": {i: 0.5 for i in range(100)}},
    "allowed ids": {**TRUNCATED, "allowed_token_ids": list(range(0, VOCAB, 2))},
    "a processor": {**TRUNCATED, "logits_processors": [forbid_one]},
    "all together": {**TRUNCATED, **PENALTIES, **WORDS, "min_p": 0.02, "logits_processors": [forbid_one]},
}


@dataclass
class Cost:
    """Microseconds a row of one feature set."""

    features: str
    rows: int
    process: float
    draw: float
    total: float


@dataclass
class Verifying:
    """Microseconds of one call that verifies all rows."""

    verifier: str
    drafts: str
    rows: int
    call: float


def timed(calls: tuple[Callable[[], Any], ...], budget: float) -> list[float]:
    """Return the best time of each call in microseconds; they take turns until `budget` seconds are over."""
    best = [float("inf")] * len(calls)
    stop = time.perf_counter() + budget
    while time.perf_counter() < stop:
        for n, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[n] = min(best[n], (time.perf_counter() - start) * 1e6)
    return best


def rows_of(sampler: Sampler, params: SamplingParams, count: int, rng: np.random.Generator) -> DrawRows:
    """Rows of one request: its newest id's, and those of a chain of drafts; the sampler keeps its state."""
    prompt = rng.permutation(VOCAB)[:KNOWN].astype(np.int32)
    request = Request("0-0", 0, prompt, params, 7, 0)
    said = rng.choice(prompt, OUTPUT).astype(np.int32)
    compiler = PipelineCompiler(VOCAB, frozenset([2]), None, torch.device("cpu"))
    sampler.finish(request)
    sampler.start(request, SamplingState(None, compiler.compile(params).start(prompt)))
    request.append(said)
    sampler.commit(request, said)
    ids = np.concatenate((said[-1:], rng.choice(prompt, count - 1).astype(np.int32)))
    return DrawRows.of([ScheduledRows(request, len(request) - 1, ids, False, count - 1, count)])


def logits_like_a_models(rows: int) -> torch.Tensor:
    """Rows in which some dozens of ids share most of the mass."""
    logits = 2.0 * torch.randn(rows, VOCAB)
    logits[:, torch.randperm(VOCAB)[:60]] += 7.0
    return logits


def costs(sampler: Sampler, rows: int, budget: float) -> list[Cost]:
    """Time every feature set."""
    measured = []
    logits = logits_like_a_models(rows)
    for name, values in FEATURES.items():
        chosen = rows_of(sampler, SamplingParams(max_tokens=1000, **values), rows, np.random.default_rng(0))
        processed, noise = sampler.process(logits, chosen), sampler.noise(chosen)

        def whole(chosen: DrawRows = chosen) -> Any:
            noise = sampler.noise(chosen)
            return sampler.draw(sampler.process(logits, chosen), noise, chosen)

        process, draw, total = timed(
            (
                lambda chosen=chosen: sampler.process(logits, chosen),
                lambda chosen=chosen, noise=noise, processed=processed: sampler.draw(processed, noise, chosen),
                whole,
            ),
            budget,
        )
        measured.append(Cost(name, rows, *(round(value / rows, 1) for value in (process, draw, total))))
    return measured


def verifying(sampler: Sampler, rows: int, budget: float) -> list[Verifying]:
    """Time verifiers on one request with rows - 1 drafts, one-hot and drawn from distributions."""
    info = TargetInfo.from_config("benchmark", {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 1}, 4096)
    logits = logits_like_a_models(rows)
    chosen = rows_of(sampler, SamplingParams(max_tokens=1000, **TRUNCATED), rows, np.random.default_rng(0))
    processed, noise = sampler.process(logits, chosen), sampler.noise(chosen)
    draws = sampler.draw(processed, noise, chosen)
    one_hot = Draft.of([draws[:-1].numpy().astype(np.int32)])
    soft = Draft.of([draws[:-1].numpy().astype(np.int32)])
    soft.q, soft.q_row = torch.softmax(logits[:-1] / 0.8, dim=-1), np.arange(rows - 1, dtype=np.int32)
    figures = []
    for name, kind, draft, traits in (
        ("coupled", "one-hot", one_hot, MethodTraits()),
        ("standard", "one-hot", one_hot, MethodTraits()),
        ("standard", "soft", soft, MethodTraits(draft_distribution="soft")),
        ("block", "soft", soft, MethodTraits(draft_distribution="soft")),
    ):
        registry = Registry(Catalog.discover().with_local({"fixed": stub_plugin(Fixed([1]), traits=traits)}))
        config = {"method": "fixed", "num_speculative_tokens": rows - 1, "rejection_sample_method": name}
        verifier = make_verifier(resolve(config, info, registry), registry)
        greedy = np.zeros(1, np.bool_)
        (call,) = timed(
            # mypy cannot infer the types of defaults.
            (lambda v=verifier, d=draft, g=greedy: v.verify(d, processed, noise, draws, g),),  # type: ignore[misc]
            budget,
        )
        figures.append(Verifying(name, kind, rows, round(call, 1)))
    return figures


def main(
    rows: Annotated[list[int] | None, typer.Option(help="Rows of the request; may be given again.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds a figure.")] = 0.5,
    threads: Annotated[int, typer.Option(help="Threads of torch and numba.")] = 2,
    out: Annotated[Path, typer.Option(help="JSON to write.")] = Path(__file__).parent / "results" / "sampling.json",
) -> None:
    """Time processing, drawing and verifying, and write tables and a JSON file."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    kernels = Registry(Catalog.discover()).kernels
    sampler = Sampler(kernels.get("draw"), kernels.get("truncate"))
    with torch.inference_mode():
        measured = [cost for count in rows or [1, 8] for cost in costs(sampler, count, budget)]
        verified = verifying(sampler, 8, budget)
    table = Table("features", "rows", "process us", "draw us", "total us", title=f"a row of {VOCAB} ids")
    for cost in measured:
        table.add_row(cost.features, str(cost.rows), str(cost.process), str(cost.draw), str(cost.total))
    Console().print(table)
    table = Table("verifier", "drafts", "rows", "us a call", title="verifying all rows")
    for figure in verified:
        table.add_row(figure.verifier, figure.drafts, str(figure.rows), str(figure.call))
    Console().print(table)
    about = {"machine": platform.machine(), "threads": threads, "torch": torch.__version__, "numba": numba.__version__}
    about |= {op: kernels.backend(op) for op in ("draw", "truncate")}
    out.parent.mkdir(parents=True, exist_ok=True)
    figures = {"about": about, "rows": list(map(asdict, measured)), "verifiers": list(map(asdict, verified))}
    out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
