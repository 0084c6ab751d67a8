"""Controllers beside fixed k and plain decoding on SmolLM2-135M (bfloat16, two threads), by workload.

    python benchmarks/controllers.py --prompts data/spec_bench_dev.jsonl

Every group of prompts goes through every arm before the next group comes, so that all arms see the same machine; the
order of arms turns by one each time. Fixed arms and controllers draft with engines of the same configuration. Each
controller keeps what it has learned from one group to the next, as in a server. Nothing else may run beside this; on a
busy machine `--threads 1 --cpu-time` counts the time of this process alone, while controllers go on to see the clock.

Workloads: `edits`, pieces of Python to be written again (drafts are right); `questions` of Spec-Bench, where --prompts
names a file (some are); `random`, random ids at temperature 1.5 (none is).
"""

from __future__ import annotations

import json
import platform
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table

from engine import edit_prompts
from spec_bench import load_prompts
from specdec_engine import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
}
DEFAULT = "default"  # no controller: drafts are cut by what they cost
CONTROLLERS = {
    "ngram": (DEFAULT, "adaptive", "goodput", "confidence"),
    "suffix": (DEFAULT, "adaptive", "goodput", "confidence"),
}
PLAIN = "plain"
RANDOM_IDS = 160  # length of a random prompt
RESAMPLES = 2000


@dataclass
class Arm:
    """One way to decode; fixed arms of a method share an engine, and set k for each request."""

    name: str
    llm: LLM
    k: int | None = None
    namespace: str | None = None

    def run(self, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> int:
        """Decode a group at once; return the number of tokens."""
        extra: dict[str, Any] = {}
        if self.k is not None:
            extra["num_speculative_tokens"] = self.k
        if self.namespace is not None:
            extra["namespace"] = self.namespace
        chosen = [replace(one, extra_args={"specdec": extra} if extra else None) for one in params]
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], chosen, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


@dataclass
class Result:
    """What one arm did on one group of prompts."""

    workload: str
    batch: int
    arm: str
    group: int
    tokens: int
    seconds: float


@dataclass
class Workload:
    """Prompts and how they are sampled."""

    name: str
    prompts: list[list[int]]
    temperature: float = 0.0


def make_arms(folder: str, most: int, ks: Sequence[int], room: int, suffixes: str) -> tuple[list[Arm], LLM]:
    """Return all arms over one model, and the plain engine."""
    alike: dict[str, Any] = {"kv_cache_tokens": room, "enable_prefix_caching": False}  # fixed arms share an engine
    plain = LLM(folder, **alike)
    shared = {"hf_model": plain.model, "tokenizer": plain.tokenizer, **alike}
    arms = [Arm(PLAIN, plain)]
    for method, config in METHODS.items():
        named = method == "suffix"  # whose requests share what they said, so that each arm needs a name of its own
        config = {**config, "num_speculative_tokens": most}
        fixed = LLM(folder, {**config, "cut_by_cost": False}, **shared)
        arms += [Arm(f"{method} k={k}", fixed, k, f"{k} {suffixes}" if named else None) for k in ks]
        for controller in CONTROLLERS[method]:
            own = {} if controller == DEFAULT else {"controller": controller}
            llm = LLM(folder, {**config, **own}, **shared)
            arms.append(Arm(f"{method} {controller}", llm, None, controller if named else None))
    return arms, plain


def workloads(plain: LLM, prompts: Path | None, count: int) -> list[Workload]:
    """Return what is decoded."""
    texts = {"edits": [text for _, text in edit_prompts(count)]}
    if prompts is not None:
        questions = [text for _, text in load_prompts(prompts, max(1, count))]
        random.Random(0).shuffle(questions)
        texts["questions"] = questions[:count]
    found = []
    for name, each in texts.items():
        encoded = plain.chat_prompts([[{"role": "user", "content": text}] for text in each])
        found.append(Workload(name, [prompt["prompt_token_ids"][:900] for prompt in encoded]))
    ids = np.random.default_rng(0).integers(100, 40_000, (count, RANDOM_IDS))
    return [*found, Workload("random", ids.tolist(), 1.5)]


def measure(
    arms: Sequence[Arm],
    workload: Workload,
    batch: int,
    max_tokens: int,
    clock: Callable[[], float],
    console: Console,
) -> list[Result]:
    """Time all arms on all groups of a workload, interleaved."""
    groups = [workload.prompts[at : at + batch] for at in range(0, len(workload.prompts), batch)]
    results = []
    for index, group in enumerate(groups):
        params = [
            SamplingParams(temperature=workload.temperature, max_tokens=max_tokens, seed=i, ignore_eos=True)
            for i in range(len(group))
        ]
        turn = index % len(arms)
        for arm in [*arms[turn:], *arms[:turn]]:
            start = clock()
            tokens = arm.run(group, params)
            results.append(Result(workload.name, batch, arm.name, index, tokens, clock() - start))
        console.print(f"{workload.name}, batch {batch}: group {index + 1} of {len(groups)} done", highlight=False)
    return results


def speed(results: Sequence[Result], arm: str, groups: Sequence[int] | None = None) -> float:
    """Return tokens per second of an arm over groups, which may repeat."""
    by_group = {r.group: r for r in results if r.arm == arm}
    chosen = [by_group[group] for group in (groups if groups is not None else by_group)]
    return sum(r.tokens for r in chosen) / sum(r.seconds for r in chosen)


def ratio(results: Sequence[Result], ours: str, theirs: str) -> dict[str, float]:
    """Return the ratio of two arms, with a 90 % interval from resampled groups."""
    groups = sorted({r.group for r in results})
    draw = np.random.default_rng(0)
    values = []
    for _ in range(RESAMPLES):
        chosen = draw.choice(groups, len(groups)).tolist()
        values.append(speed(results, ours, chosen) / speed(results, theirs, chosen))
    low, high = np.quantile(values, [0.05, 0.95])
    return {"ratio": speed(results, ours) / speed(results, theirs), "low": float(low), "high": float(high)}


def summary(results: Sequence[Result], arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Return for each workload and batch the speeds, and each controller beside plain and the best fixed k."""
    found = []
    for workload, batch in dict.fromkeys((r.workload, r.batch) for r in results):
        chosen = [r for r in results if (r.workload, r.batch) == (workload, batch)]
        speeds = {arm.name: speed(chosen, arm.name) for arm in arms}
        row: dict[str, Any] = {"workload": workload, "batch": batch, "tokens_per_second": speeds, "controllers": {}}
        for method, controllers in CONTROLLERS.items():
            best = max((a.name for a in arms if a.k is not None and a.name.startswith(method)), key=speeds.__getitem__)
            for name in (f"{method} {controller}" for controller in controllers):
                row["controllers"][name] = {
                    "over_plain": ratio(chosen, name, PLAIN),
                    "best_fixed": best,
                    "over_best_fixed": ratio(chosen, name, best),
                    "best_fixed_over_plain": ratio(chosen, best, PLAIN),
                }
        found.append(row)
    return found


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the tables."""
    names = list(rows[0]["tokens_per_second"])
    table = Table("tokens/s", *(f"{row['workload']} x {row['batch']}" for row in rows))
    for name in names:
        table.add_row(name, *(f"{row['tokens_per_second'][name]:.1f}" for row in rows))
    console.print(table)
    table = Table("workload", "controller", "over plain", "best fixed", "it over plain", "over best fixed")
    for row in rows:
        for name, found in row["controllers"].items():
            cells = [
                f"{r['ratio']:.3f} ({r['low']:.3f} .. {r['high']:.3f})"
                for r in (found["over_plain"], found["best_fixed_over_plain"], found["over_best_fixed"])
            ]
            table.add_row(f"{row['workload']} x {row['batch']}", name, cells[0], found["best_fixed"], *cells[1:])
    console.print(table)


def main(
    prompts: Annotated[Path | None, typer.Option(help="Spec-Bench questions, one JSON object a line.")] = None,
    count: Annotated[int, typer.Option(help="Prompts of each workload.")] = 16,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each answer.")] = 96,
    k: Annotated[list[int], typer.Option(help="Fixed numbers of drafts; controllers get the largest.")] = [  # noqa: B006
        1,
        2,
        3,
        5,
        7,
        10,
        15,
    ],
    batch: Annotated[list[int], typer.Option(help="Requests at once.")] = [1, 8],  # noqa: B006
    threads: Annotated[int, typer.Option(help="Threads of every arm.")] = 2,
    cpu_time: Annotated[bool, typer.Option(help="Count the time of this process alone.")] = False,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("benchmarks/results/controllers.json"),
) -> None:
    """Run the comparison, print tables, write JSON."""
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    console = Console(width=160)
    room = max(batch) * (1100 + max_tokens)
    arms, plain = make_arms(str(model_folder()), max(k), k, room, "fixed")
    chosen = workloads(plain, prompts, count)
    for arm in arms:  # what is only done once
        arm.run([chosen[0].prompts[0][:64] * 2], [SamplingParams(temperature=0.0, max_tokens=16)])
    out.parent.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for size in batch:
        for workload in chosen:
            results += measure(arms, workload, size, max_tokens, process_time if cpu_time else perf_counter, console)
            rows = summary(results, arms)
            data = {
                "machine": platform.processor() or platform.machine(),
                "threads": torch.get_num_threads(),
                "clock": "cpu" if cpu_time else "wall",
                "torch": torch.__version__,
                "workloads": rows,
                "results": [vars(r) for r in results],
            }
            out.write_text(json.dumps(data, indent=1))
    show(rows, console)


if __name__ == "__main__":
    typer.run(main)
