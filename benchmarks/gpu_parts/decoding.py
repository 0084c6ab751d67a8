"""Engines over the random target: identity, tokens a second, and where the time of a step goes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_parts import sizes as shapes
from gpu_parts.clock import ForwardClock, copy_bytes_per_second
from gpu_parts.sizes import Sizes
from specdec_core.draft import BatchView
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Garbage, Stub, stub_plugin
from specdec_testing.trees import Tree, TreeStub

Row = dict[str, Any]
DECODE_WIDTH = 8


class Continuation:
    """What plain decoding says, by prompt: drafts go on from the place that a text has reached."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]]) -> None:
        self.outputs = outputs

    def after(self, batch: BatchView, i: int) -> list[int]:
        request = batch.request(i)
        prompt = tuple(request.tokens[: request.prompt_len].tolist())
        return self.outputs[prompt][len(request.tokens) - request.prompt_len :]


class Chain(Stub):
    """Drafts the plain text."""

    def __init__(self, known: Continuation) -> None:
        super().__init__()
        self._known = known

    def row(self, batch: BatchView, i: int) -> Sequence[int]:
        return self._known.after(batch, i)


class Branches(TreeStub):
    """Drafts the plain text as one path of a tree; all other nodes are wrong, three a node of the path at the most."""

    def __init__(self, known: Continuation, vocab: int, depth: int) -> None:
        super().__init__()
        self._known, self._vocab, self._depth = known, vocab, depth

    def tree(self, batch: BatchView, i: int) -> Tree:
        most = int(batch.max_draft[i])
        path = self._known.after(batch, i)[: min(self._depth, most)]
        ids, parents = list(path), list(range(-1, len(path) - 1))
        node = -1
        while len(ids) < most and path:
            right = path[node + 1] if node + 1 < len(path) else -1
            for step in range(1, 4):
                if len(ids) < most:
                    ids.append((right + step) % self._vocab)
                    parents.append(node)
            node += 1
            if node >= len(path):
                break
        return ids, parents


def prompts(sizes: Sizes, count: int) -> list[dict[str, list[int]]]:
    """Return different prompts."""
    rng = np.random.default_rng(3)
    return [{"prompt_token_ids": rng.integers(0, sizes.vocab, sizes.prompt).tolist()} for _ in range(count)]


def asked(sizes: Sizes, temperature: float = 0.0) -> SamplingParams:
    """Return the parameters of a timed answer."""
    return SamplingParams(temperature=temperature, max_tokens=sizes.tokens, ignore_eos=True, seed=1)


def run(llm: LLM, given: list[dict[str, list[int]]], params: SamplingParams) -> list[list[int]]:
    """Return the ids of all answers."""
    return [list(output.outputs[0].token_ids) for output in llm.generate(given, params, use_tqdm=False)]


@contextmanager
def engine(model: Any, sizes: Sizes, stub: Any = None, k: int | None = None, **options: Any) -> Iterator[LLM]:
    """Open an engine, with a stub that drafts if there is one."""
    config = None
    if stub is not None:
        options["plugins"] = {"stub": stub_plugin(stub)}
        config = {"method": "stub", "num_speculative_tokens": k or sizes.k}
    elif "speculative_config" in options:
        config = options.pop("speculative_config")
    most = {"max_num_seqs": sizes.batch, "max_model_len": min(sizes.positions, 2 * (sizes.prompt + sizes.tokens))}
    with LLM(hf_model=model, speculative_config=config, strict=True, disable_log_stats=True, **most, **options) as llm:
        yield llm


def known_of(given: list[dict[str, list[int]]], texts: list[list[int]]) -> Continuation:
    """Return what a plain run has said."""
    keys = [tuple(prompt["prompt_token_ids"]) for prompt in given]
    return Continuation(dict(zip(keys, texts, strict=True)))


def identity(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Return whether text is the same, to the id, with and without drafts, with a decode width."""
    model, given = shapes.target(sizes, device), prompts(sizes, 3)
    width = {"decode_width": DECODE_WIDTH}
    for temperature in (0.0, 0.8):
        params = asked(sizes, temperature)
        with engine(model, sizes, **width) as llm:
            plain = run(llm, given, params)
        known = known_of(given, plain)
        stubs: dict[str, Any] = {
            "right drafts": Chain(known),
            "wrong drafts": Garbage(sizes.vocab),
            "a tree with the right path": Branches(known, sizes.vocab, sizes.k),
        }
        for name, stub in stubs.items():
            nodes = sizes.nodes if isinstance(stub, TreeStub) else None
            with engine(model, sizes, stub, nodes, **width) as llm:
                texts = run(llm, given, params)
                metrics = llm.get_metrics()
            first = [next((i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), None)
                     for pair in zip(plain, texts, strict=True)]  # fmt: skip
            yield {
                "case": f"{name}, temperature {temperature}",
                "equal": texts == plain,
                "first_difference": first,
                "accepted": metrics.accepted,
                "drafted": metrics.drafted,
            }


def timed(llm: LLM, sizes: Sizes, given: list[dict[str, list[int]]], device: torch.device) -> Row:
    """Return tokens a second of a decode, and the share of it that is not the target's forward; the best of some."""
    run(llm, given, asked(sizes))  # compiles, and captures
    clock = ForwardClock(llm._engine.target, device)
    found: list[Row] = []
    for _ in range(3 if device.type == "cuda" else 1):
        with llm.start(given, asked(sizes)) as going:
            while not all(group.emitted for group in going.groups):  # prompts
                going.step()
            before = sum(group.emitted for group in going.groups)
            clock.take()  # waits
            start = time.perf_counter()
            while not going.finished:
                going.step()
            inside = clock.take()
            whole = time.perf_counter() - start
            emitted = sum(group.emitted for group in going.groups) - before
        row: Row = {"tokens_per_second": emitted / whole, "share_outside_forward": 1 - inside / whole, "seconds": whole}
        found.append(row)
    return max(found, key=lambda row: row["tokens_per_second"])


def graphs(device: torch.device) -> list[dict[str, Any]]:
    """Return the options of engines with and without captured graphs, where there are any."""
    return [{"enforce_eager": False}, {"enforce_eager": True}] if device.type == "cuda" else [{}]


def label(options: dict[str, Any]) -> str:
    """Return how an engine runs, in words."""
    # The options are of any type: what is no bool finds nothing.
    return {True: ", without graphs", False: ", with graphs"}.get(options.get("enforce_eager"), "")  # type: ignore[arg-type]


def decoding(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Measure plain decoding, right drafts, a tree and a head, one request and several."""
    model = shapes.target(sizes, device)
    copied = copy_bytes_per_second(device)
    limit = copied / sizes.forward_bytes
    for options in graphs(device):
        for count in (1, sizes.batch):
            given = prompts(sizes, count)
            with engine(model, sizes, **options) as llm:
                plain = timed(llm, sizes, given, device)
                known = known_of(given, run(llm, given, asked(sizes)))
            case = f"{count} at once{label(options)}"
            yield {"case": f"plain, {case}", **plain, "of_weight_limit": plain["tokens_per_second"] / count / limit}
            stubs = {f"right drafts, k = {sizes.k}": (Chain(known), sizes.k)}
            stubs[f"a tree of {sizes.nodes} nodes"] = (Branches(known, sizes.vocab, sizes.k), sizes.nodes)
            for name, (stub, k) in stubs.items():
                with engine(model, sizes, stub, k, **options) as llm:
                    row = timed(llm, sizes, given, device)
                    length = llm.get_metrics().mean_acceptance_length
                speed = row["tokens_per_second"] / plain["tokens_per_second"]
                yield {"case": f"{name}, {case}", **row, "of_plain": speed, "acceptance_length": length}


def heads(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Measure a random EAGLE-3 head, whose drafts are bad: what a step of drafting costs."""
    model = shapes.target(sizes, device)
    with tempfile.TemporaryDirectory() as folder:
        head = shapes.head(sizes, Path(folder))
        for options in graphs(device):
            shapes_of = {"chain": {}, "static tree": {"speculative_token_tree": "[(0,), (1,), (0, 0)]"}}
            shapes_of["dynamic tree"] = {"tree_top_k": 2, "tree_depth": 2}
            for name, keys in shapes_of.items():
                config = {"method": "eagle3", "model": head, "num_speculative_tokens": 3, **keys}
                with engine(model, sizes, speculative_config=config, **options) as llm:
                    row = timed(llm, sizes, prompts(sizes, 1), device)
                    metrics = llm.get_metrics()
                yield {
                    "case": f"eagle3 {name}{label(options)}",
                    **row,
                    "acceptance_length": metrics.mean_acceptance_length,
                    "failures": metrics.failures,
                }
