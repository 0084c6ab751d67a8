"""vLLM on SmolLM2-135M (bfloat16): plain, its own n-gram, and our n-gram and suffix inside of it, by task.

    .venv-vllm/bin/python benchmarks/vllm.py --prompts data/spec_bench_dev.jsonl

Each arm is an engine in a process of its own, and all are started first. Then every prompt goes through every arm
before the next prompt comes; the order of arms turns by one each time, and an arm waits while another one works. Times
are of whole calls, prompt pass included. Nothing else may run beside this.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spec_bench import load_prompts

sys.path.remove(str(Path(__file__).parent))  # where this file would be found as `vllm`
sys.path.append(str(Path(__file__).parents[1] / "demo"))
from smollm2 import model_folder

LOOKUP = {"num_speculative_tokens": 7, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
SUFFIX = {"num_speculative_tokens": 16, "specdec": {"suffix_decoding_max_spec_factor": 2.0}}
PLAIN = "vLLM plain"
ARMS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    "vLLM n-gram": {"method": "ngram", **LOOKUP},
    "specdec n-gram": {"method": "specdec", "model": "ngram", **LOOKUP},
    "specdec suffix": {"method": "specdec", "model": "suffix", **SUFFIX},
}
WORKER = "worker"
COUNTERS = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")


class Engine:
    """One arm: a process that answers prompts, one line of JSON for each call."""

    def __init__(self, name: str, speculative: dict[str, Any] | None, settings: dict[str, Any], threads: int) -> None:
        """Start it; `ready` waits until it can answer."""
        self.name = name
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "NUMBA_NUM_THREADS": str(threads),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
        }
        command = [sys.executable, str(Path(__file__)), WORKER, json.dumps([settings, speculative])]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, prompts: Sequence[list[int]]) -> dict[str, Any]:
        """Return ids of the answers, seconds, and counters since the engine's start."""
        assert self._process.stdin is not None
        print(json.dumps(list(prompts)), file=self._process.stdin, flush=True)
        return self._answer()

    def ready(self) -> dict[str, Any]:
        """Wait for the start."""
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        message = f"the engine of {self.name!r} ended with code {self._process.wait()}; its errors are above"
        raise RuntimeError(message)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Result:
    """What one arm did with one group of prompts in one repeat."""

    arm: str
    task: str
    group: int
    repeat: int
    tokens: int
    seconds: float
    answers: list[list[int]]


def work(settings: dict[str, Any], speculative: dict[str, Any] | None) -> None:
    """Be the process of an arm: answer lines of JSON until there are no more."""
    import vllm

    max_tokens = settings.pop("max_tokens")
    llm = vllm.LLM(**settings, speculative_config=speculative, disable_log_stats=False)
    params = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens)
    tokenizer = llm.get_tokenizer()
    say({"eos": tokenizer.eos_token_id})
    for line in sys.stdin:
        prompts = [{"prompt_token_ids": ids} for ids in json.loads(line)]
        start = perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = perf_counter() - start
        counted = {metric.name.removeprefix("vllm:"): getattr(metric, "value", 0) for metric in llm.get_metrics()}
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        say({"answers": answers, "seconds": seconds, "counters": {name: counted.get(name, 0) for name in COUNTERS}})


def say(answer: dict[str, Any]) -> None:
    """Write one line for the parent."""
    print(json.dumps(answer), flush=True)


@contextmanager
def started(arms: dict[str, dict[str, Any] | None], settings: dict[str, Any], threads: int) -> Iterator[list[Engine]]:
    """Start an engine for each arm, one after the other, and end them afterwards."""
    engines: list[Engine] = []
    try:
        for name, speculative in arms.items():
            print(f"starting {name}", file=sys.stderr, flush=True)
            engines.append(Engine(name, speculative, settings, threads))
            engines[-1].ready()
        yield engines
    finally:
        for engine in engines:
            engine.close()


def run(engines: Sequence[Engine], groups: Sequence[tuple[str, list[list[int]]]], repeats: int) -> list[Result]:
    """Time all arms on all groups of prompts, interleaved."""
    for engine in engines:  # compiling, allocating, loading of kernels
        engine.ask([groups[0][1][0][:64]])
        engine.ask(groups[0][1])
    results = []
    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[arm]}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("prompts", total=repeats * len(groups) * len(engines), arm="")
        for repeat in range(repeats):
            for i, (task, prompts) in enumerate(groups):
                turn = (repeat + i) % len(engines)
                for engine in [*engines[turn:], *engines[:turn]]:
                    progress.update(bar, arm=engine.name)
                    answer = engine.ask(prompts)
                    tokens = sum(map(len, answer["answers"]))
                    results.append(Result(engine.name, task, i, repeat, tokens, answer["seconds"], answer["answers"]))
                    progress.advance(bar)
    return results


def speed(results: Sequence[Result], arm: str, task: str | None = None, repeat: int | None = None) -> float:
    """Tokens per second over all prompts (of a task, of a repeat)."""
    chosen = [r for r in results if r.arm == arm and task in (None, r.task) and repeat in (None, r.repeat)]
    return sum(r.tokens for r in chosen) / sum(r.seconds for r in chosen)


def same_as_plain(results: Sequence[Result], arm: str) -> float:
    """Return the part of answers that equal those of plain decoding; in bfloat16 rounding makes some differ."""
    plain = {(r.group, r.repeat): r.answers for r in results if r.arm == PLAIN}
    pairs = [
        (mine, other)
        for r in results
        if r.arm == arm
        for mine, other in zip(r.answers, plain[r.group, r.repeat], strict=True)
    ]
    return sum(mine == other for mine, other in pairs) / len(pairs)


def summary(
    results: Sequence[Result], counters: dict[str, dict[str, int]], settings: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """Put the figures together as plain data."""
    names = list(dict.fromkeys(r.arm for r in results))
    tasks = sorted({r.task for r in results})
    over_plain = {}
    for name in names:
        values = sorted(speed(results, name, repeat=r) / speed(results, PLAIN, repeat=r) for r in range(repeats))
        over_plain[name] = {"min": values[0], "median": statistics.median(values), "max": values[-1]}
    return {
        "settings": settings,
        "tokens_per_second": {n: {"all": speed(results, n), **{t: speed(results, n, t) for t in tasks}} for n in names},
        "over_plain": over_plain,
        "same_answers_as_plain": {name: same_as_plain(results, name) for name in names},
        "counters": counters,
        "results": [{key: value for key, value in vars(r).items() if key != "answers"} for r in results],
    }


def show(data: dict[str, Any], console: Console) -> None:
    """Print the table."""
    tasks = list(next(iter(data["tokens_per_second"].values())))
    table = Table("tokens/s", *tasks, "over plain", "accepted of drafted", "same answers")
    for arm, by_task in data["tokens_per_second"].items():
        ratio, counted = data["over_plain"][arm], data["counters"][arm]
        drafted, accepted = counted[COUNTERS[1]], counted[COUNTERS[2]]
        table.add_row(
            arm,
            *(f"{by_task[task]:.1f}" for task in tasks),
            f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
            f"{accepted} of {drafted}" if drafted else "-",
            f"{100 * data['same_answers_as_plain'][arm]:.0f} %",
        )
    console.print(table)


def main(
    prompts: Annotated[Path, typer.Option(help="Spec-Bench questions, one JSON object a line.")],
    per_task: Annotated[int, typer.Option(help="Prompts of each task.")] = 5,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each answer, at most.")] = 96,
    repeats: Annotated[int, typer.Option(help="Times that everything is done.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of every engine.")] = 2,
    together: Annotated[int, typer.Option(help="Prompts of one task that are asked at one time.")] = 1,
    eager: Annotated[bool, typer.Option("--eager", help="Do not let vLLM compile the model.")] = False,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("benchmarks/results/vllm.json"),
) -> None:
    """Run the comparison, print the table, write JSON."""
    from transformers import AutoTokenizer

    folder = str(model_folder())
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    by_task: dict[str, list[list[int]]] = {}
    for task, text in load_prompts(prompts, per_task):
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )
        by_task.setdefault(task, []).append(list(chat["input_ids"]))
    groups = [(task, all_[i : i + together]) for task, all_ in by_task.items() for i in range(0, len(all_), together)]
    settings = {
        "model": folder,
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": max(8, together),
        "enable_prefix_caching": False,
        "enforce_eager": eager,
        "max_tokens": max_tokens,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with started(ARMS, settings, threads) as engines:
        results = run(engines, groups, repeats)
        counters = {engine.name: engine.ask([groups[0][1][0][:8]])["counters"] for engine in engines}
    data = summary(results, counters, {**settings, "threads": threads, "together": together}, repeats)
    out.write_text(json.dumps(data, indent=1))
    show(data, Console(width=180))


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        work(*json.loads(sys.argv[2]))
    else:
        typer.run(main)
