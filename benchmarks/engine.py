"""The engine beside transformers on SmolLM2-135M (bfloat16, two threads): plain decoding and prompt lookup, by task.

    python benchmarks/engine.py --prompts data/spec_bench_dev.jsonl

Every prompt goes through every arm before the next prompt comes, so that all arms see the same machine; the order of
arms turns by one each time. Times are of whole calls, prompt pass included. Nothing else may run beside this.

With `--suffix` suffix decoding is a further arm. Each repeat has a namespace of its own, so it begins cold; n-gram and
suffix then do the same prompts a second time, when suffix has heard all the answers.

With `--arm`, which may be given several times, a speculative configuration as JSON is a further arm; a key "name" names
it. Such an arm keeps what it has learnt: it is cold in the first repeat, and in the others it heard all answers. With
`--warm N` such arms first answer N other prompts of each task, so that the first repeat is warm on unknown prompts.
"""

from __future__ import annotations

import json
import platform
import random
import re
import statistics
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spec_bench import load_prompts, other_prompts
from specdec_core import hookimpl
from specdec_engine import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

NGRAM = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
PLAIN, LOOKUP_5, LOOKUP_10 = "transformers plain", "transformers lookup 5", "transformers lookup 10"
OURS, OURS_NGRAM, OURS_SUFFIX = "specdec plain", "specdec n-gram", "specdec suffix"
SECOND = ", second pass"
EDITS = "edits"
SESSION = 5  # edits of one piece of code
HELP_PROMPTS = "Spec-Bench questions, one JSON object a line with 'category' and 'turns'."


@dataclass
class Steps:
    """Times of decoding steps in seconds, as the engine reports them to an observer; a plugin object."""

    overhead: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    forward: list[float] = field(default_factory=list)

    @hookimpl
    def specdec_step_finished(self, step: Any) -> None:
        """Keep steps of one decoding request, by number of verified rows."""
        if len(step.request_ids) == 1 and step.rows == 1 + step.drafted[0]:
            self.overhead[step.rows].append(sum(step.seconds.values()) - step.seconds["forward"])
            self.forward.append(step.seconds["forward"])


@dataclass
class Result:
    """What one arm did on one prompt in one repeat."""

    arm: str
    task: str
    prompt: int
    repeat: int
    tokens: int
    seconds: float
    drafts: int = 0
    kept: int = 0


def edit_prompts(count: int) -> list[tuple[str, str]]:
    """Return (task, text): sessions of edits, each of a piece of Python of the standard library, one name at a time."""
    rng = random.Random(0)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    chosen: list[tuple[str, str]] = []
    while len(chosen) < count:
        code = rng.choice(files).read_text(encoding="utf-8", errors="replace").split("\n\n\n")
        piece = rng.choice(code).strip("\n")
        names = sorted(set(re.findall(r"\b[a-z_]{4,}\b", piece)))
        if 400 < len(piece) < 1200 and len(names) >= SESSION:
            for name in rng.sample(names, SESSION):
                task = f"Write this Python code again, with the name {name} changed to item. Only the code."
                chosen.append((EDITS, f"{task}\n\n{piece}"))
    return chosen[:count]


@dataclass
class Suffix:
    """The arm with suffix decoding; requests of one namespace share what they have said."""

    llm: LLM
    max_tokens: int
    namespace: str = ""

    def __call__(self, ids: list[int]) -> list[int]:
        """Answer one prompt."""
        extra = {"specdec": {"namespace": self.namespace}}
        params = SamplingParams(temperature=0.0, max_tokens=self.max_tokens, extra_args=extra)
        return list(self.llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0].outputs[0].token_ids)


@dataclass
class Further:
    """An arm of `--arm`; `last` are the metrics of its last answer."""

    llm: LLM
    max_tokens: int
    last: Any = None

    def __call__(self, ids: list[int]) -> list[int]:
        """Answer one prompt."""
        params = SamplingParams(temperature=0.0, max_tokens=self.max_tokens)
        output = self.llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0]
        self.last = output.metrics
        return list(output.outputs[0].token_ids)


def further(given: Sequence[str], folder: str, max_tokens: int, plain: LLM) -> dict[str, Further]:
    """Return the arms of `--arm` by name: its "name", or its method."""
    found = {}
    for text in given:
        config = json.loads(text)
        name = f"specdec {config.pop('name', None) or config.get('method') or config['model']}"
        llm = LLM(folder, config, hf_model=plain.model, tokenizer=plain.tokenizer, enable_prefix_caching=False)
        taken = name in found or name in (OURS, OURS_NGRAM, OURS_SUFFIX)
        found[f"{name} {len(found)}" if taken else name] = Further(llm, max_tokens)
    return found


def arms(
    folder: str, max_tokens: int, steps: Steps, suffix: str | None
) -> tuple[dict[str, Callable[[list[int]], list[int]]], Any]:
    """Return a function for each arm from prompt ids to output ids, and the tokenizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, trust_remote_code=False)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    # Prompts come again in every repeat, and in each their whole pass is timed.
    plain = LLM(folder, enable_prefix_caching=False)
    ngram = LLM(
        folder,
        {**NGRAM, "observers": ["steps"]},
        hf_model=plain.model,
        tokenizer=plain.tokenizer,
        plugins={"steps": steps},
        enable_prefix_caching=False,
    )

    def theirs(**lookup: int) -> Callable[[list[int]], list[int]]:
        def generate(ids: list[int]) -> list[int]:
            inputs = torch.tensor([ids])
            with torch.inference_mode():
                out = model.generate(
                    inputs,
                    attention_mask=torch.ones_like(inputs),
                    max_new_tokens=max_tokens,
                    do_sample=False,
                    **lookup,
                )
            result: list[int] = out[0, len(ids) :].tolist()
            return result

        return generate

    def ours(llm: LLM) -> Callable[[list[int]], list[int]]:
        return lambda ids: llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0].outputs[0].token_ids

    functions: dict[str, Callable[[list[int]], list[int]]] = {
        PLAIN: theirs(),
        LOOKUP_5: theirs(prompt_lookup_num_tokens=5),
        LOOKUP_10: theirs(prompt_lookup_num_tokens=10),
        OURS: ours(plain),
        OURS_NGRAM: ours(ngram),
    }
    if suffix is not None:
        llm = LLM(folder, suffix, hf_model=plain.model, tokenizer=plain.tokenizer, enable_prefix_caching=False)
        functions[OURS_SUFFIX] = Suffix(llm, max_tokens)
    return functions, plain


def encode(llm: LLM, texts: Sequence[tuple[str, str]]) -> list[tuple[str, list[int]]]:
    """Return (task, ids) of questions, each a chat of one message."""
    prompts = llm.chat_prompts([[{"role": "user", "content": text}] for _, text in texts])
    return [(task, prompt["prompt_token_ids"]) for (task, _), prompt in zip(texts, prompts, strict=True)]


def warm_up(functions: dict[str, Callable[[list[int]], list[int]]], prompts: Sequence[tuple[str, list[int]]]) -> None:
    """Let every arm compile, allocate and load what it needs, on a short and on a whole prompt."""
    for function in functions.values():
        function(prompts[0][1][:64])
        function(prompts[0][1])


def run(
    functions: dict[str, Callable[[list[int]], list[int]]],
    prompts: Sequence[tuple[str, list[int]]],
    repeat: int,
    repeats: int,
) -> list[Result]:
    """Time all arms on all prompts once, interleaved."""
    if isinstance(suffix := functions.get(OURS_SUFFIX), Suffix):
        suffix.namespace = f"repeat {repeat}"
    names = list(functions)
    results = []
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[arm]}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"repeat {repeat + 1} of {repeats}", total=len(prompts) * len(names), arm="")
        for i, (task, ids) in enumerate(prompts):
            turn = (repeat + i) % len(names)
            for arm in names[turn:] + names[:turn]:
                progress.update(bar, arm=arm)
                start = perf_counter()
                tokens = len(functions[arm](ids))
                result = Result(arm, task, i, repeat, tokens, perf_counter() - start)
                if isinstance(function := functions[arm], Further):
                    result.drafts, result.kept = function.last.drafts, function.last.kept_with_draft
                results.append(result)
                progress.advance(bar)
    if not console.is_terminal:
        print(f"repeat {repeat + 1} of {repeats} done", file=sys.stderr, flush=True)
    return results


def second_pass(
    functions: dict[str, Callable[[list[int]], list[int]]],
    prompts: Sequence[tuple[str, list[int]]],
    repeat: int,
    repeats: int,
) -> list[Result]:
    """Time n-gram and suffix on the same prompts again, in the namespace of the first pass."""
    again = {arm: functions[arm] for arm in (OURS_NGRAM, OURS_SUFFIX)}
    return [replace(result, arm=result.arm + SECOND) for result in run(again, prompts, repeat, repeats)]


def speed(results: Sequence[Result], arm: str, task: str | None = None, repeat: int | None = None) -> float:
    """Tokens per second over all prompts (of a task, of a repeat)."""
    chosen = [r for r in results if r.arm == arm and task in (None, r.task) and repeat in (None, r.repeat)]
    return sum(r.tokens for r in chosen) / sum(r.seconds for r in chosen)


def ratio(results: Sequence[Result], ours: str, theirs: str, repeats: int) -> dict[str, float]:
    """Ratio of two arms by repeat: least, median, most."""
    values = sorted(speed(results, ours, repeat=r) / speed(results, theirs, repeat=r) for r in range(repeats))
    return {"min": values[0], "median": statistics.median(values), "max": values[-1]}


def further_figures(results: Sequence[Result], names: Sequence[str], repeats: int) -> dict[str, Any]:
    """Of each arm of `--arm`: its speed over plain decoding, and by repeat and task the ids gained a draft."""
    found: dict[str, Any] = {}
    for name in names:
        found[f"{name}_over_plain"] = ratio(results, name, OURS, repeats)
        lengths: dict[str, list[float]] = defaultdict(list)
        over: dict[str, list[float]] = defaultdict(list)
        for repeat in range(repeats):
            for task in dict.fromkeys(r.task for r in results):
                own = [r for r in results if (r.arm, r.repeat, r.task) == (name, repeat, task)]
                lengths[task].append(round(sum(r.kept for r in own) / max(1, sum(r.drafts for r in own)), 3))
                over[task].append(round(speed(own, name) / speed(results, OURS, task, repeat), 3))
        found[f"{name}: mean acceptance length by task, repeat by repeat"] = dict(lengths)
        found[f"{name}: over plain by task, repeat by repeat"] = dict(over)
    return found


def suffix_ratios(results: Sequence[Result], repeats: int) -> dict[str, dict[str, float]]:
    """Ratios of suffix to n-gram: cold, on the second pass, and on edits; none without that arm."""
    if not any(r.arm == OURS_SUFFIX for r in results):
        return {}
    edits = [r for r in results if r.task == EDITS]
    cold = [r for r in results if r.task != EDITS]
    found = {
        "suffix_over_ngram": ratio(cold, OURS_SUFFIX, OURS_NGRAM, repeats),
        "suffix_over_ngram_second_pass": ratio(cold, OURS_SUFFIX + SECOND, OURS_NGRAM + SECOND, repeats),
    }
    if edits:
        found["suffix_over_ngram_edits"] = ratio(edits, OURS_SUFFIX, OURS_NGRAM, repeats)
    return found


def summary(results: list[Result], steps: Steps, repeats: int, more: Sequence[str]) -> dict[str, Any]:
    """Put the figures together as plain data."""
    names = list(dict.fromkeys(r.arm for r in results))
    tasks = sorted({r.task for r in results})
    better = max((LOOKUP_5, LOOKUP_10), key=lambda arm: speed(results, arm))
    forward = statistics.median(steps.forward) if steps.forward else 0.0
    return {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokens_per_second": {n: {"all": speed(results, n), **{t: speed(results, n, t) for t in tasks}} for n in names},
        "plain_over_transformers": ratio(results, OURS, PLAIN, repeats),
        "ngram_over_better_lookup": {"peer": better, **ratio(results, OURS_NGRAM, better, repeats)},
        "ngram_over_plain": ratio(results, OURS_NGRAM, OURS, repeats),
        **suffix_ratios(results, repeats),
        **further_figures(results, more, repeats),
        "step": {
            "forward_ms": 1e3 * forward,
            "overhead_ms_by_rows": {
                rows: 1e3 * statistics.median(times) for rows, times in sorted(steps.overhead.items())
            },
            "overhead_share_of_a_plain_step": (
                statistics.median(steps.overhead[1]) / forward if steps.overhead.get(1) and forward else None
            ),
        },
        "results": [vars(r) for r in results],
    }


def show(data: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    speeds = data["tokens_per_second"]
    tasks = list(next(iter(speeds.values())))
    table = Table("tokens/s", *tasks)
    for arm, by_task in speeds.items():
        table.add_row(arm, *(f"{by_task[task]:.1f}" for task in tasks))
    console.print(table)
    for name, r in data.items():
        if ": " in name:
            console.print(f"{name}: {r}")
        if "_over_" not in name:
            continue
        console.print(f"{name}: median {r['median']:.2f} ({r['min']:.2f} to {r['max']:.2f}) {r.get('peer', '')}")
    console.print("step overhead, everything but the target's forward:", data["step"])


def main(
    prompts: Annotated[Path, typer.Option(help=HELP_PROMPTS)],
    per_task: Annotated[int, typer.Option(help="Prompts of each task.")] = 5,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each answer, at most.")] = 96,
    repeats: Annotated[int, typer.Option(help="Times that everything is done.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of every arm.")] = 2,
    suffix: Annotated[
        str | None, typer.Option(help="A further arm: the configuration of suffix decoding, as JSON.")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help="A further arm: a speculative configuration as JSON; may be repeated.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only prompts of this task; may be repeated.")] = None,
    warm: Annotated[int, typer.Option(help="Other prompts of each task that the arms of --arm answer before.")] = 0,
    edits: Annotated[int, typer.Option(help="Further prompts that ask for an edit of Python code.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("benchmarks/results/engine.json"),
) -> None:
    """Run the comparison, print tables, write JSON."""
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    steps = Steps()
    functions, plain = arms(str(model_folder()), max_tokens, steps, suffix)
    more = further(arm or (), str(model_folder()), max_tokens, plain)
    functions.update(more)
    texts = load_prompts(prompts, per_task)
    if unknown := set(task or ()) - {name for name, _ in texts}:
        message = f"no prompt of {sorted(unknown)}; there are {sorted({name for name, _ in texts})}"
        raise typer.BadParameter(message)
    texts = [text for text in texts if not task or text[0] in task]
    before = encode(plain, other_prompts(prompts, warm, texts)) if warm else []
    chosen = encode(plain, texts + edit_prompts(edits))
    out.parent.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    warm_up(functions, chosen)
    for function in more.values():
        for _, ids in before:
            function(ids)
    for repeat in range(repeats):
        results += run(functions, chosen, repeat, repeats)
        if suffix is not None:
            results += second_pass(functions, chosen, repeat, repeats)
        data = summary(results, steps, repeat + 1, list(more))
        out.write_text(json.dumps(data, indent=1))
    show(data, Console(width=160))


if __name__ == "__main__":
    typer.run(main)
