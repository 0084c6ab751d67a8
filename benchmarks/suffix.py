"""The cache of suffix decoding beside that of Arctic Inference: the same traces and calls, in one run, draft by draft.

    python benchmarks/suffix.py --prompts data/spec_bench_dev.jsonl

Traces: texts of Spec-Bench, edits of Python files of the standard library, random repeated phrases. Words, spaces and
signs are numbered as they come and stand for ids. Without `arctic_inference` only this cache is measured.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import platform
import random
import re
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numba
import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from specdec_plugin_suffix.cache import SuffixCache
from specdec_plugin_suffix.kernels.numba import Forest

try:
    from arctic_inference.suffix_decoding import SuffixDecodingCache
except ImportError:
    SuffixDecodingCache = None

IntArray = npt.NDArray[np.int32]
Pair = tuple[IntArray, IntArray]  # prompt, response
DEPTH, K, FACTOR, LEAST = 24, 24, 1.0, 0.1
OURS, PEER = "specdec", "arctic"
WORDS = re.compile(r" ?\w+|\s+|[^\w\s]")


def encoder() -> Callable[[str], list[int]]:
    """Return a function that numbers words as they come."""
    ids: dict[str, int] = {}
    return lambda text: [ids.setdefault(word, len(ids)) for word in WORDS.findall(text)]


def answers(file: Path, encode: Callable[[str], list[int]], rng: random.Random) -> Iterator[Pair]:
    """Answers made of the sentences of a question of Spec-Bench and of its reference, some of them left out."""
    questions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    texts = [" ".join(strings([question.get("reference") or [], question["turns"]])) for question in questions]
    sentences = [[encode(part) for part in re.split(r"(?<=[.!?\n])", text) if part] for text in texts]
    while True:
        chosen = rng.choice(sentences)
        response = [token for part in chosen if rng.random() < 0.8 for token in part]
        yield array(chosen[0]), array(response[:400] or chosen[0])


def strings(nested: Any) -> list[str]:
    """Return the texts in nested lists."""
    return [nested] if isinstance(nested, str) else [text for part in nested for text in strings(part)]


def edits(encode: Callable[[str], list[int]], rng: random.Random) -> Iterator[Pair]:
    """Edit sessions: a piece of a Python file, then the same piece with one word changed all through."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [encode(file.read_text(encoding="utf-8", errors="replace")) for file in files]
    texts = [text for text in texts if len(text) > 100]
    while True:
        text = rng.choice(texts)
        start = rng.randrange(max(1, len(text) - 300))
        piece = text[start : start + rng.randint(100, 300)]
        old, new = rng.choice(piece), rng.choice(rng.choice(texts))
        yield array(piece), array([new if token == old else token for token in piece])


def phrases(rng: random.Random) -> Iterator[Pair]:
    """Phrases of three to twenty ids, again and again in another order."""
    known = [[rng.randrange(50_000) for _ in range(rng.randint(3, 20))] for _ in range(400)]
    while True:
        yield array(rng.choice(known)), array([token for _ in range(15) for token in rng.choice(known)])


def array(tokens: list[int]) -> IntArray:
    return np.asarray(tokens, np.int32)


class Ours:
    """The cache of this plugin, with the calls of the comparison."""

    def __init__(self, cached: int) -> None:
        self.cache = cache = SuffixCache(DEPTH, cached, forest=Forest)
        self.start, self.extend, self.stop = cache.start, cache.extend, cache.stop

    def speculate(self, name: Any, context: IntArray) -> Any:
        return self.cache.speculate(name, K)

    def accounted(self) -> int:
        return self.cache.stats().used_bytes

    @staticmethod
    def plain(draft: Any) -> tuple[Any, ...]:
        tokens = draft.tokens.tolist()
        matched = (draft.score, draft.matched) if tokens else ()
        return tokens, draft.parents.tolist(), draft.probabilities.tolist(), *matched


class Peer:
    """The cache of Arctic Inference."""

    def __init__(self, cached: int) -> None:
        self.cache = cache = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=cached)
        self.start, self.extend, self.stop = cache.start_request, cache.add_active_response, cache.stop_request

    def speculate(self, name: Any, context: IntArray) -> Any:
        return self.cache.speculate(name, context, K, FACTOR, 0.0, LEAST)

    def accounted(self) -> int:
        return int(self.cache._global_tree.estimate_memory())

    @staticmethod
    def plain(draft: Any) -> tuple[Any, ...]:
        matched = (draft.score, draft.match_len) if draft.token_ids else ()
        return draft.token_ids, draft.parents, draft.probs, *matched


MAKERS: dict[str, Callable[[int], Any]] = {OURS: Ours} if SuffixDecodingCache is None else {OURS: Ours, PEER: Peer}


@dataclass
class Times:
    """Nanoseconds of each call of one cache on one trace."""

    build: int = 0
    extend: list[int] = field(default_factory=list)
    speculate: list[int] = field(default_factory=list)
    fused: list[int] = field(default_factory=list)


@dataclass
class Result:
    """One cache on one trace: microseconds a token to build, median and 99th percentile of a call, bytes a token."""

    trace: str
    cached: int
    who: str
    tokens: int
    build_us: float
    extend_us: tuple[float, float]
    speculate_us: tuple[float, float]
    fused_us: tuple[float, float] | None
    accounted_bytes: float
    resident_bytes: float | None
    steps: int
    accepted: float


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    begin = time.perf_counter_ns()
    result = call(*arguments)
    return time.perf_counter_ns() - begin, result


def build(cache: Any, pairs: list[Pair]) -> int:
    """Run whole requests through a cache; return nanoseconds."""
    begin = time.perf_counter_ns()
    for i, (prompt, response) in enumerate(pairs):
        cache.start(i, prompt)
        cache.extend(i, response)
        cache.stop(i)
    return time.perf_counter_ns() - begin


def decode(caches: dict[str, Any], times: dict[str, Times], name: Any, pair: Pair) -> tuple[int, int]:
    """Decode a response with all caches in turn; returns steps and accepted ids, and checks every draft."""
    prompt, text = pair[0], np.concatenate(pair)
    for cache in caches.values():
        cache.start(name, prompt)
    known, steps, accepted, new = len(prompt), 0, 0, 1
    order = list(caches)
    while known + new <= len(text):
        fresh, known = text[known : known + new], known + new
        context = text[max(0, known - DEPTH) : known]
        order.reverse()
        drafts = {}
        for who in order:
            times[who].extend.append(timed(caches[who].extend, name, fresh)[0])
        for who in order:
            took, draft = timed(caches[who].speculate, name, context)
            times[who].speculate.append(took)
            drafts[who] = caches[who].plain(draft)
        if len({repr(draft) for draft in drafts.values()}) > 1:
            message = f"drafts differ after {known} ids of {name}: {drafts}"
            raise SystemExit(message)
        ids = next(iter(drafts.values()))[0]
        ahead = text[known : known + len(ids)].tolist()
        right = next((i for i, (a, b) in enumerate(zip(ids, ahead, strict=False)) if a != b), len(ahead))
        steps, accepted, new = steps + 1, accepted + right, right + 1
    for cache in caches.values():
        cache.stop(name)
    return steps, accepted


def fuse(ours: Ours, times: Times, name: Any, pair: Pair) -> None:
    """Decode with one call a step, as the proposer does."""
    entry, text = ours.cache.start(name, pair[0]), np.concatenate(pair)
    out = np.empty(3 * K, np.int32)
    known, new = len(pair[0]), 1
    while known + new <= len(text):
        fresh = text[known : known + new]
        took, count = timed(ours.cache.step, entry, fresh, 0, 0, K, out, 0, K)
        times.fused.append(took)
        known += new
        ahead = text[known : known + count]
        same = out[: len(ahead)] == ahead
        new = 1 + (len(ahead) if same.all() else int(same.argmin()))
    ours.cache.stop(name)


def resident() -> int | None:
    """Bytes of this process in memory, None where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else None


def measure(who: str, pairs: list[Pair], sender: Any) -> None:
    """Build a cache in this process and send by how many bytes that makes it grow."""
    warm = MAKERS[who](1)
    build(warm, pairs[:1])
    gc.collect()
    before = resident() or 0
    cache = MAKERS[who](len(pairs))
    build(cache, pairs)
    sender.send((resident() or 0) - before)


def grown(who: str, pairs: list[Pair]) -> int | None:
    """Return by how many bytes a fresh process grows when it builds a cache."""
    if resident() is None:
        return None
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(who, pairs, sender))
    process.start()
    size: int = receiver.recv()
    process.join()
    return size


def figures(nanoseconds: list[int]) -> tuple[float, float]:
    return round(float(np.median(nanoseconds)) / 1e3, 2), round(float(np.percentile(nanoseconds, 99)) / 1e3, 2)


def compare(trace: str, pairs: Iterator[Pair], cached: int, sessions: int) -> list[Result]:
    """Build caches of some requests, then decode further ones."""
    history, fresh = [next(pairs) for _ in range(cached)], [next(pairs) for _ in range(sessions)]
    tokens = sum(len(prompt) + len(response) for prompt, response in history)
    shared = sum(len(response) for _, response in history)
    memory = {who: grown(who, history) for who in MAKERS}
    caches = {who: make(cached) for who, make in MAKERS.items()}
    for make in MAKERS.values():
        build(make(1), fresh[:1])  # the first call of all loads compiled code
    times = {who: Times(build(cache, history)) for who, cache in caches.items()}
    accounted = {who: cache.accounted() for who, cache in caches.items()}
    totals = np.zeros(2, np.int64)
    for i, pair in enumerate(fresh):
        totals += decode(caches, times, f"fresh {i}", pair)
    for i, pair in enumerate(fresh):
        fuse(caches[OURS], times[OURS], f"fresh {i}", pair)
    return [
        Result(
            trace=trace,
            cached=cached,
            who=who,
            tokens=tokens,
            build_us=round(times[who].build / tokens / 1e3, 3),
            extend_us=figures(times[who].extend),
            speculate_us=figures(times[who].speculate),
            fused_us=figures(times[who].fused) if times[who].fused else None,
            accounted_bytes=round(accounted[who] / shared, 1),
            resident_bytes=None if (size := memory[who]) is None else round(size / shared, 1),
            steps=int(totals[0]),
            accepted=round(float(totals[1] / totals[0]), 2),
        )
        for who in caches
    ]


def budget(total: int, limit: int, rng: random.Random) -> dict[str, Any]:
    """Add ids under a limit of ids: what is held, and the CPU time of each update."""
    cache, source = SuffixCache(DEPTH, None, max_tokens=limit, forest=Forest), phrases(rng)
    updates: list[int] = []
    held: list[tuple[int, int, int]] = []
    name = added = 0
    in_order = True
    while added < total:
        prompt, response = next(source)
        cache.start(name, prompt)
        for start in range(0, len(response), 10):
            part = response[start : start + 10]
            begin = time.thread_time_ns()
            cache.extend(name, part)
            updates.append(time.thread_time_ns() - begin)
            added += len(part)
        cache.stop(name)
        name += 1
        if name % 50 == 0 or added >= total:
            stats, shared = cache.stats(), cache.shared()
            in_order &= shared == list(range(shared[0], name))
            if added > min(2 * limit, total // 2):
                held.append((stats.tokens, stats.nodes, resident() or 0))
    edges = {
        name: [min(column), max(column)]
        for name, column in zip(("tokens", "nodes", "resident_bytes"), zip(*held, strict=True), strict=True)
    }
    update_us = {str(q): round(float(np.percentile(updates, q)) / 1e3, 1) for q in (50, 99, 99.9, 100)}
    return {"added": added, "limit": limit, "update_us": update_us, **edges, "evicted_in_order": in_order}


def table_of(results: list[Result]) -> Table:
    table = Table(title=f"depth {DEPTH}; microseconds, median / 99th percentile; bytes a shared id")
    for heading in "trace cached who build extend speculate both bytes resident accepted".split():
        table.add_column(heading, justify="left" if heading in ("trace", "who") else "right", no_wrap=True)
    for r in results:
        calls = [f"{pair[0]} / {pair[1]}" if pair else "" for pair in (r.extend_us, r.speculate_us, r.fused_us)]
        cells = [r.trace, r.cached, r.who, r.build_us, *calls, r.accounted_bytes, r.resident_bytes or "", r.accepted]
        table.add_row(*map(str, cells))
    return table


def ratios(results: list[Result]) -> list[dict[str, Any]]:
    """Ours over theirs, for every trace and size."""

    def quantities(r: Result) -> dict[str, float]:
        calls = {"extend": r.extend_us, "speculate": r.speculate_us}
        times = {f"{call}_{name}": us[i] for call, us in calls.items() for i, name in enumerate(("median", "p99"))}
        return {"build": r.build_us, **times, "bytes": r.accounted_bytes, "resident": r.resident_bytes or 0.0}

    found = []
    for ours, theirs in zip(results[::2], results[1::2], strict=True):
        peer = quantities(theirs)
        shares = {name: round(value / peer[name], 3) for name, value in quantities(ours).items() if peer[name]}
        found.append({"trace": ours.trace, "cached": ours.cached, **shares})
    return found


def main(
    prompts: Annotated[
        Path | None, typer.Option(help="Questions of Spec-Bench; without them that trace is left out.")
    ] = None,
    cached: Annotated[list[int], typer.Option(help="Requests in the caches; may be repeated.")] = [10, 1_000, 10_000],  # noqa: B006
    sessions: Annotated[int, typer.Option(help="Requests that are decoded and timed.")] = 40,
    tokens: Annotated[int, typer.Option(help="Ids added in the run under a limit; 0 leaves it out.")] = 1_000_000,
    limit: Annotated[int, typer.Option(help="Ids that may be held in that run.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of the traces.")] = 0,
    out: Annotated[Path, typer.Option(help="JSON to write.")] = Path(__file__).parent / "results" / "suffix.json",
) -> None:
    """Compare both caches on all traces, then run ours under a limit; print tables, write JSON."""
    console = Console(width=160)
    if SuffixDecodingCache is None:
        console.print("arctic_inference cannot be imported: only this cache is measured, and no draft is compared")
    results: list[Result] = []
    for count in cached:
        encode = encoder()
        traces: dict[str, Iterator[Pair]] = {
            "edits": edits(encode, random.Random(seed)),
            "phrases": phrases(random.Random(seed)),
        }
        if prompts is not None:
            traces = {"answers": answers(prompts, encode, random.Random(seed)), **traces}
        for trace, pairs in traces.items():
            results += compare(trace, pairs, count, sessions)
            console.print(f"{trace}, {count} cached: done")
    console.print(table_of(results))
    data: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "settings": {"depth": DEPTH, "k": K, "factor": FACTOR, "min_probability": LEAST, "seed": seed},
        "results": [asdict(result) for result in results],
    }
    if SuffixDecodingCache is not None:
        data["ratios"] = ratios(results)
        for ratio in data["ratios"]:
            console.print(ratio)
        console.print("every draft of both was the same: ids, parents, probabilities, score, length of the match")
    if tokens:
        data["budget"] = budget(tokens, limit, random.Random(seed))
        console.print(data["budget"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(data, indent=1))
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
