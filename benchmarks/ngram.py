"""Times a whole `propose()` of `ngram` beside a rescan of the context, for several ranges of n, on seeded ids.

    python benchmarks/ngram.py --tokens 50000 --steps 2000

Both make the same drafts at every step, which is checked. The rescan is one pass over the whole context in compiled
code (the failure function of the reversed context, capped at the longest n), as engines without an index do it.
"""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numba
import numpy as np
import numpy.typing as npt
import typer
from numba import int32, int64, types
from rich.console import Console
from rich.progress import track
from rich.table import Table

from specdec_core.draft import BatchView
from specdec_core.noise import Noise
from specdec_plugin_ngram.options import NgramOptions
from specdec_plugin_ngram.proposer import NgramProposer

VOCAB_SIZE = 49152
RANGES = ((2, 4), (5, 5), (10, 500))
IntArray = npt.NDArray[np.int32]
_IDS = types.Array(int32, 1, "C", readonly=True)


class Request:
    """A request whose ids are all there already and become known one by one."""

    def __init__(self, name: str, ids: IntArray, known: int) -> None:
        self.id, self.seq_index, self.prompt_len = name, 0, known
        self.sampling_params = self.extra = None
        self._ids, self.known = ids, known
        self._ids.flags.writeable = False

    @property
    def tokens(self) -> IntArray:
        return self._ids[: self.known]


@dataclass
class Timing:
    """Times of one way over one range: microseconds a call, and what it took before the first call."""

    way: str
    low: int
    high: int
    match: str
    batch: int
    tokens: int
    start_ms: float
    median_us: float
    p99_us: float
    drafted: float
    megabytes: float


def synthetic_ids(n: int, seed: int) -> IntArray:
    """Return ids with a skewed distribution in which passages of 5 to 300 ids come back again and again."""
    rng = np.random.default_rng(seed)
    ids = (rng.zipf(1.2, n) % VOCAB_SIZE).astype(np.int32)
    at = 500
    while at < n:
        length = min(int(rng.integers(5, 300)), n - at)
        if rng.random() < 0.4:
            source = int(rng.integers(0, at - length)) if at > length else 0
            ids[at : at + length] = ids[source : source + length].copy()
        at += length
    return ids


@numba.njit(int64(_IDS, int64, int64, int64, int32[::1]), cache=True)
def rescan(ids: IntArray, low: int, high: int, k: int, out: IntArray) -> int:
    """Write the draft of `ngram` (earliest match) by one pass over all ids; return its length."""
    n = ids.size
    borders = np.zeros(high, np.int32)
    best, end, matched = 0, 0, 0
    for i in range(1, n):
        token = ids[n - 1 - i]
        while matched > 0 and (matched == high or ids[n - 1 - matched] != token):
            matched = borders[matched - 1]
        if ids[n - 1 - matched] == token:
            matched += 1
        if i < high:
            borders[i] = matched
        if matched >= best and matched > 0:
            best, end = matched, n - 1 - i + matched
    if best < low:
        return 0
    count = min(k, n - end)
    for i in range(count):
        out[i] = ids[end + i]
    return count


def batch_of(requests: list[Request], k: int) -> BatchView:
    n = len(requests)
    zeros = np.zeros(n, np.int32)
    return BatchView(
        requests=requests,
        run_len=zeros,
        newest_known=np.ones(n, np.bool_),
        max_draft=np.full(n, k, np.int32),
        noise=Noise(np.zeros(n, np.uint64), zeros, zeros),
    )


def time_index(texts: list[IntArray], tokens: int, steps: int, options: NgramOptions, k: int) -> tuple[Timing, list]:
    """Time `propose` of the plugin; returns the drafts too."""
    proposer = NgramProposer(options, VOCAB_SIZE)
    requests = [Request(str(i), ids, tokens) for i, ids in enumerate(texts)]
    begin = time.perf_counter()
    for request in requests:
        proposer.start(request)
    start_ms = 1e3 * (time.perf_counter() - begin) / len(requests)
    times, drafts = np.empty(steps), []
    batch = batch_of(requests, k)
    for step in range(steps):
        for request in requests:
            request.known += 1 + step % 3
        begin_ns = time.perf_counter_ns()
        draft = proposer.propose(batch)
        times[step] = time.perf_counter_ns() - begin_ns
        drafts.append((list(draft.lengths or ()), draft.tokens.tolist()))
    megabytes = proposer.memory_bytes() / 1e6 / len(requests)
    return timing("index", options, tokens, start_ms, times, drafts, megabytes), drafts


def time_rescan(texts: list[IntArray], tokens: int, steps: int, options: NgramOptions, k: int) -> tuple[Timing, list]:
    """Time one pass a request and step, called from Python like the plugin's own kernel."""
    requests = [Request(str(i), ids, tokens) for i, ids in enumerate(texts)]
    low, high = options.prompt_lookup_min, options.prompt_lookup_max
    out, times, drafts = np.empty(k, np.int32), np.empty(steps), []
    rescan(requests[0].tokens, low, high, k, out)  # the first call loads the compiled code
    for step in range(steps):
        for request in requests:
            request.known += 1 + step % 3
        rows = []
        begin_ns = time.perf_counter_ns()
        for request in requests:
            count = rescan(request.tokens, low, high, k, out)
            rows.append(out[:count].copy())
        times[step] = time.perf_counter_ns() - begin_ns
        drafts.append(([len(row) for row in rows], np.concatenate(rows).tolist()))
    return timing("rescan", options, tokens, 0.0, times, drafts, 0.0), drafts


def timing(
    way: str,
    options: NgramOptions,
    tokens: int,
    start_ms: float,
    times: npt.NDArray[np.float64],
    drafts: list,
    megabytes: float,
) -> Timing:
    batch = len(drafts[0][0])
    return Timing(
        way=way,
        low=options.prompt_lookup_min,
        high=options.prompt_lookup_max,
        match=options.match,
        batch=batch,
        tokens=tokens,
        start_ms=round(start_ms, 2),
        median_us=round(float(np.median(times)) / 1e3, 2),
        p99_us=round(float(np.percentile(times, 99)) / 1e3, 2),
        drafted=round(sum(sum(lengths) for lengths, _ in drafts) / len(drafts) / batch, 2),
        megabytes=round(megabytes, 2),
    )


def table_of(timings: list[Timing]) -> Table:
    table = Table(title=f"propose() at {timings[0].tokens} ids")
    for heading in ("way", "n", "batch", "start ms", "median us", "p99 us", "drafted", "MB"):
        table.add_column(heading, justify="left" if heading == "way" else "right", no_wrap=heading == "way")
    for t in timings:
        figures = (t.batch, t.start_ms, t.median_us, t.p99_us, t.drafted, t.megabytes)
        table.add_row(f"{t.way}, {t.match}", f"{t.low}..{t.high}", *map(str, figures))
    return table


def main(
    tokens: Annotated[int, typer.Option(help="Ids known before the first step.")] = 50_000,
    steps: Annotated[int, typer.Option(help="Steps timed with the index; the rescan is timed for a tenth.")] = 2_000,
    k: Annotated[int, typer.Option(help="Ids drafted at most.")] = 5,
    batches: Annotated[list[int], typer.Option("--batch", help="Requests in a batch; may be repeated.")] = [1, 32],  # noqa: B006
    seed: Annotated[int, typer.Option(help="Seed of the ids.")] = 0,
    out: Annotated[Path, typer.Option(help="JSON to write.")] = Path(__file__).parent / "results" / "ngram.json",
) -> None:
    """Time the index and the rescan, print a table, write JSON."""
    console = Console()
    cases = [(n, low, high, match) for n in batches for low, high in RANGES for match in ("earliest", "latest")]
    timings = []
    for n, low, high, match in track(cases, "timing", console=console):
        own_steps = max(20, steps // n)
        texts = [synthetic_ids(tokens + 3 * own_steps, seed + i) for i in range(n)]
        options = NgramOptions(prompt_lookup_min=low, prompt_lookup_max=high, match=match)
        found, drafts = time_index(texts, tokens, own_steps, options, k)
        timings.append(found)
        if match == "earliest":
            scanned, same = time_rescan(texts, tokens, max(10, own_steps // 10), options, k)
            timings.append(scanned)
            if drafts[: len(same)] != same:
                message = f"index and rescan draft differently for n = {low}..{high}"
                raise SystemExit(message)
    console.print(table_of(timings))
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"machine": platform.machine(), "python": platform.python_version(), "numba": numba.__version__}
    out.write_text(json.dumps({**machine, "k": k, "seed": seed, "timings": [asdict(t) for t in timings]}, indent=1))
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
