"""The ops of sampling and verification on a GPU at real sizes: each against its definition, and timed against a copy.

    python benchmarks/gpu_sampling.py

`check(device)` is a part of `gpu_check.py`. Bandwidth is that of one read of the logits: their bytes by the time of the
kernels, which a CUDA graph runs, so that launches from Python do not count. Without a GPU, with TRITON_INTERPRET=1 and
`small`, the same runs at sizes that mean nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_parts.clock import copy_bytes_per_second, kernel_seconds
from specdec_core.draft import Draft
from specdec_core.noise import Noise
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import ENVIRONMENT, Kernels
from specdec_nn.ops.draw import triton as draw_triton
from specdec_nn.ops.draw.reference import draw_reference
from specdec_nn.ops.logprobs.reference import logprobs_reference
from specdec_nn.ops.logprobs.triton import logprobs
from specdec_nn.ops.top_ids.reference import top_ids_reference
from specdec_nn.ops.top_ids.triton import top_ids
from specdec_plugin_eagle.kernels import torch_ref as trees_reference
from specdec_plugin_eagle.kernels import triton as trees_triton
from specdec_plugin_verifiers.kernels.verify import reference
from specdec_plugin_verifiers.kernels.verify import triton as verify
from specdec_plugin_verifiers.trial import Judge, Trial

TREE = (
    -1,
    -1,
    -1,
    -1,
    *(i // 2 for i in range(8)),
    *(4 + i for i in range(8)),
    *(12 + i for i in range(8)),
    20,
    21,
    22,
    23,
)
RULES = {"coupled": verify.coupled, "standard": verify.standard, "block": verify.block}


@dataclass
class Result:
    """One op in one case.

    equal          share of the rows that are the definition's; below 1 only by ties that rounding decides
    microseconds   of its kernels; 0 where there is no GPU
    bytes          of one read of what it has to read
    share_of_copy  of the bandwidth of a copy, read and written bytes together
    """

    op: str
    case: str
    equal: float
    microseconds: float
    bytes: int
    share_of_copy: float


@contextmanager
def definitions() -> Iterator[None]:
    """Take the definition of every op that is looked up."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = "reference"
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT) if before is None else os.environ.update({ENVIRONMENT: before})


def noise_of(rng: np.random.Generator, lengths: list[int]) -> Noise:
    """Return the noise of rows of requests."""
    rows = np.array(lengths) + 1
    keys = np.repeat(rng.integers(0, 2**63, len(rows)).astype(np.uint64), rows)
    positions = np.concatenate([np.arange(n) for n in rows]).astype(np.int32) + 500
    return Noise(keys, positions, np.zeros(len(keys), np.int32))


def draft_of(rng: np.random.Generator, logits: Tensor, requests: int, nodes: int, *, tree: bool, drawn: bool) -> Draft:
    """Return drafts that are the likeliest ids at most places, and their q if they are drawn."""
    size, best = logits.shape[1], logits.float().topk(8, dim=-1).indices.cpu().numpy()
    parents = np.array(TREE[:nodes] if tree else range(-1, nodes - 1), np.int32)
    tokens, seen = np.empty((requests, nodes), np.int32), np.zeros(nodes + 1, np.int64)
    for node, parent in enumerate(parents.tolist()):
        own = rng.random(requests) < 0.15
        rows = np.arange(requests) * (nodes + 1) + 1 + parent
        tokens[:, node] = np.where(own & (not tree), rng.integers(0, size, requests), best[rows, seen[parent + 1]])
        seen[parent + 1] += 1
    draft = Draft([nodes] * requests, tokens.reshape(-1), np.tile(parents, requests) if tree else None)
    if drawn:
        kept = torch.arange(len(logits), device=logits.device) % (nodes + 1) != nodes
        noisy = logits.float() + 0.5 * torch.randn(logits.shape, device=logits.device)
        draft.q = torch.softmax(noisy[kept] if not tree else noisy, dim=-1)
        family = np.arange(requests * nodes)
        if tree:
            family = (np.arange(requests)[:, None] * (nodes + 1) + 1 + parents).reshape(-1)
        draft.q_row = family.astype(np.int32)
    return draft


def verifications(device: torch.device, kernels: Kernels, small: bool) -> Iterator[tuple[str, str, Any, Any, int]]:
    """Yield op, case, a call of the kernels, one of the definition, and bytes of the logits."""
    rng, judge = np.random.default_rng(0), Judge(kernels)
    requests, vocabulary = (2, 300) if small else (32, 128256)
    for rule, case in (
        ("coupled", "greedy"), ("coupled", "sampled"), ("standard", "point masses"), ("standard", "drawn"),
        ("block", "point masses"), ("block", "drawn"), ("coupled", "greedy, tree"), ("standard", "point masses, tree"),
        ("standard", "drawn, tree"),
    ):  # fmt: skip
        tree = case.endswith("tree")
        count, nodes = (requests // 4 or 1, 6 if small else len(TREE)) if tree else (requests, 5)
        logits = (torch.randn(count * (nodes + 1), vocabulary, device=device) * 4).to(torch.bfloat16)
        draft = draft_of(rng, logits, count, nodes, tree=tree, drawn=case.startswith("drawn"))
        noise, greedy = noise_of(rng, list(draft.lengths or ())), np.full(count, case.startswith("greedy"))
        given = draft, logits, noise, None, greedy
        trial = Trial.of(kernels, None, *given) if rule == "coupled" else judge.trial(*given)
        call = verify.Call(trial)
        yield (
            f"verify_{rule}",
            f"{count} x {nodes} of {vocabulary}, {case}",
            partial(RULES[rule], call),
            partial(getattr(reference, f"verify_{rule}"), trial),
            logits.numel() * 2,
        )


def others(device: torch.device, small: bool) -> Iterator[tuple[str, str, Any, Any, int]]:
    """Yield the same for the ops over rows of logits."""
    rng, rows = np.random.default_rng(1), 4 if small else 192
    for vocabulary in (300,) if small else (128256, 262144):
        logits = (torch.randn(rows, vocabulary, device=device) * 4).to(torch.bfloat16)
        noise, size = noise_of(rng, [0] * rows), logits.numel() * 2
        chosen = torch.randint(0, vocabulary, (rows,), device=device)
        columns = draw_triton.columns_on(device, noise.keys, noise.positions, noise.seq_index, np.zeros(rows))
        for name, greedy in (("greedy", True), ("sampled", False)):
            plain = np.full(rows, greedy)
            columns = draw_triton.columns_on(device, noise.keys, noise.positions, noise.seq_index, plain)
            kernel = partial(draw_triton.joined, logits, columns, races=not greedy)
            yield "draw", f"{rows} of {vocabulary}, {name}", kernel, partial(draw_reference, logits, noise, plain), size
        single = logits.float() + torch.randn_like(logits, dtype=torch.float32) * 1e-3  # no ties
        pairs = ((top_ids, top_ids_reference, (single, 10)), (logprobs, logprobs_reference, (logits, chosen)))
        for op, definition, given in pairs:
            bytes_read = given[0].numel() * given[0].element_size()
            case = f"{rows} of {vocabulary}"
            yield op.__name__, case, lambda op=op, g=given: op(*g), lambda d=definition, g=given: d(*g), bytes_read
        scores = torch.zeros(rows, device=device)
        expand = single, scores, 10
        yield (
            "tree_expand",
            f"{rows} of {vocabulary}, 10",
            partial(trees_triton.tree_expand, *expand),
            partial(trees_reference.tree_expand, *expand),
            single.numel() * 4,
        )


def equal_share(found: Any, want: Any) -> float:
    """Return the share of rows whose integers are equal; floats must be close."""
    pairs = list(zip(found, want, strict=True)) if isinstance(found, tuple) else [(found, want)]
    same = torch.ones(len(pairs[0][0]), dtype=torch.bool, device=pairs[0][0].device)
    for mine, reference_ in pairs:
        if mine.is_floating_point():
            torch.testing.assert_close(mine, reference_, rtol=1e-5, atol=1e-5)
            continue
        width = min(mine.shape[-1], reference_.shape[-1]) if mine.dim() > 1 else None
        equal = mine[..., :width].long() == reference_[..., :width].long()
        same &= equal if equal.dim() == 1 else equal.all(1)
    return float(same.double().mean())


def check(device: torch.device, *, small: bool = False) -> list[Result]:
    """Run every op once against its definition, and time it; a GPU with Triton, or a CPU with its interpreter."""
    kernels = Kernels(Catalog.discover(), ["specdec-plugin-verifiers", "specdec-plugin-eagle"])
    on_gpu, results = device.type == "cuda", []
    copied = copy_bytes_per_second(device) if on_gpu else 0.0
    with torch.inference_mode():
        torch.manual_seed(0)
        for op, case, kernel, definition, size in (*verifications(device, kernels, small), *others(device, small)):
            with definitions():
                want = definition()
            found = kernel()
            equal = equal_share(found, want)
            us = 1e6 * kernel_seconds(lambda _, kernel=kernel: kernel(), device) if on_gpu else 0.0
            share = size / (us * 1e-6) / copied if on_gpu else 0.0
            results.append(Result(op, case, equal, round(us, 2), size, round(share, 3)))
    return results


if __name__ == "__main__":
    gpu = torch.cuda.is_available()
    for result in check(torch.device("cuda" if gpu else "cpu"), small=not gpu):
        print(asdict(result))
