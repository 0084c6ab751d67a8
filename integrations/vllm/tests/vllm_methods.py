"""Methods of tests, made known to specdec by metadata in a folder, as installed ones are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from pydantic import Field

from specdec_core.config.speculative import MethodOptions
from specdec_core.draft import Draft
from specdec_core.markers import hookimpl
from specdec_core.traits import MethodTraits
from specdec_testing.stubs import Stub

THIRD_PARTY = Path(__file__).parent / "third_party" / "acme-echo"
METHODS = ("table_drafts", "wrong", "reads_states", "repeats", "repeats_states")


def install_third_party(folder):
    """Build and install the third party's distribution into a folder, as pip does."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(folder), str(THIRD_PARTY)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def register(folder):
    """Write metadata that names the methods of this module."""
    info = folder / "acme_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tests\nVersion: 1.0\n")
    points = "".join(f"{name} = {__name__}:plugin\n" for name in METHODS)
    extensions = f"[specdec.extensions.v1]\nwatching = {__name__}:watching\n"
    (info / "entry_points.txt").write_text(f"[specdec.proposers.v1]\n{points}{extensions}")
    return folder


class WrongOptions(MethodOptions):
    """How `wrong` goes wrong."""

    how: str = Field("raises", description="Which way.")
    every: int = Field(1, ge=1, description="How often: each n-th call.")


class Plugin:
    """The hooks of all of them; `answer` is what is said of vLLM's own methods."""

    answer = None

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(self):
        return self.answer

    @hookimpl
    def specdec_method_options(self, method):
        return WrongOptions if method == "wrong" else MethodOptions

    @hookimpl
    def specdec_method_traits(self, ctx):
        states = ctx.method.endswith("states")
        return MethodTraits(rows="all" if states else "none", hidden=states)

    @hookimpl
    def specdec_make_proposer(self, ctx):
        if ctx.method == "wrong":
            return Wrong(ctx.options.how, ctx.options.every, ctx.target.vocab_size)
        return Repeats() if ctx.method.startswith("repeats") else TableDrafts()


class Repeats(Stub):
    """Always drafts three ids: what followed the newest one before, right where a model goes in circles."""

    def row(self, batch, i):
        known = batch.request(i).tokens
        before = np.flatnonzero(known[:-1] == known[-1])
        followed = known[before[-1] + 1 :] if len(before) else known[-1:]
        return np.resize(followed, 3).tolist()


class TableDrafts(Stub):
    """Drafts a fixed walk through the ids: right often enough, and wrong often enough, to show a wrong verifier."""

    def row(self, batch, i):
        newest = int(batch.request(i).tokens[-1])
        return [(newest + 1 + step) % 6 for step in range(3)]


class Wrong(Stub):
    """Breaks the contract in the way it is told, each n-th call; else repeats the newest id.

    A test may change the way between two generations: `Wrong.now.how = "too many"`.
    """

    now = None

    def __init__(self, how, every, vocab_size):
        super().__init__()
        self.how, self.every, self.vocab_size = how, every, vocab_size
        Wrong.now = self

    def start(self, request):
        super().start(request)
        if self.how == "raises in start":
            raise RuntimeError("no start today")

    def finish(self, request, reason):
        super().finish(request, reason)
        if self.how == "raises in finish":
            raise RuntimeError("no end today")

    def propose(self, batch):
        self.calls += 1
        rows = [[int(batch.request(i).tokens[-1])] * int(batch.max_draft[i]) for i in range(len(batch))]
        if self.calls % self.every:
            return Draft.of(rows)
        match self.how:
            case "raises":
                raise RuntimeError("no drafts today")
            case "exits":
                raise SystemExit(3)
            case "too many":
                rows[0] = [2] * 200
            case "out of the vocabulary":
                rows[-1] = [self.vocab_size]
            case "negative":
                rows[-1] = [-1]
            case "rows missing":
                rows = rows[1:]
            case "too many rows":
                rows = [*rows, [2]]
            case "no draft":
                return None
            case "floats":
                return Draft([1] * len(rows), np.ones(len(rows), np.float32))
        return Draft.of(rows)


class Watching:
    """An extension that is both: a controller that allows prompts of two ids one draft, and an observer."""

    def __init__(self):
        self.clear()

    def clear(self, fails=False):
        self.fails = fails
        self.steps, self.observed, self.started, self.ended, self.slow = [], [], [], [], set()

    @hookimpl
    def specdec_make_controller(self):
        return self

    def limit(self, requests, k):
        if self.fails:
            raise RuntimeError("no wish")
        self.slow |= {request.id for request in requests if request.prompt_len == 2}
        return [min(most, 1) if request.id in self.slow else most for request, most in zip(requests, k, strict=True)]

    def observe(self, stats):
        self.observed.append(stats)

    @hookimpl
    def specdec_session_started(self, info):
        self.started.append(info)

    @hookimpl
    def specdec_step_finished(self, step):
        self.steps.append(step)

    @hookimpl
    def specdec_session_finished(self, summary):
        self.ended.append(summary)


plugin = Plugin()
watching = Watching()
