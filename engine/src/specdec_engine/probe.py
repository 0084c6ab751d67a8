"""The trial every target passes at load: two requests in ragged pieces must give what the stock forward gives.

It finds models that never call the attention interface, swallow its keywords, call it twice, or mix requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specdec.errors import TargetError
from specdec_engine.families import expected_windows
from specdec_engine.request import Request, Work
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.target import Target

LENGTHS = (9, 14)
# Pieces of the two prompts that run together: a first chunk of each, then decode rows beside a chunk, then decode rows.
STEPS: tuple[tuple[tuple[int, bool], tuple[int, bool]], ...] = (
    ((4, True), (6, True)),
    ((3, False), (5, True)),
    ((2, False), (3, False)),
)
# A row counts as wrong when its error, relative to the norm of the stock row, is above this.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.08, torch.float16: 0.03}
# In low precision a near-tie in an expert router may send a few rows another way in the stock forward, too.
WRONG_ROWS_ALLOWED = {torch.bfloat16: 0.2, torch.float16: 0.2}


def probe(target: Target) -> int:
    """Run the trial and return the KV bytes of one token over all layers.

    Raises TargetError naming the first layer that differs, or the layers that do not use the attention interface.
    """
    requests = [_request(target, i, length) for i, length in enumerate(LENGTHS)]
    target.set_budget(4 * sum(LENGTHS) + 256)
    width, target.decode_width = target.decode_width, None
    try:
        try:
            ragged, ragged_logits = _ragged(target, requests)
        except (TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
            name = type(target.model).__name__
            unused = "" if target.binding.calls() else ", and it does not use transformers' attention interface"
            message = f"{name} fails in a flat ragged batch{unused}: {type(error).__name__}: {error}"
            raise TargetError(message) from error
        stock, stock_logits = _stock(target, requests)
        _compare(target, ragged, stock)
        _compare_rows(target, ragged_logits, stock_logits, "the logits differ although every attention layer agrees")
        return target.arena.memory_bytes() // target.arena.num_tokens
    finally:
        target.decode_width = width
        target.set_budget(0)


def _request(target: Target, index: int, length: int) -> Request:
    ids = (np.arange(length) * 37 + 11 * index + 5) % min(target.info.vocab_size, 30000)
    return Request(f"probe-{index}", 0, ids.astype(np.int32), SamplingParams(), 0, index)


@contextmanager
def _outputs(modules: Sequence[nn.Module], into: list[list[Tensor]]) -> Iterator[None]:
    """Collect the output [rows, width] of each module, call by call."""

    def keep(place: list[Tensor]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            place.append(first.reshape(-1, first.shape[-1]).float())

        return hook

    hooks = [module.register_forward_hook(keep(place)) for module, place in zip(modules, into, strict=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _ragged(target: Target, requests: Sequence[Request]) -> tuple[list[Tensor], Tensor]:
    """Run the pieces; return each attention layer's output and the logits, rows in order of (request, position)."""
    candidates = target.binding.modules
    collected: list[list[Tensor]] = [[] for _ in candidates]
    logits: list[Tensor] = []
    order: list[tuple[int, int]] = []
    target.binding.reset_calls()
    with _outputs(candidates, collected):
        for step in STEPS:
            works = []
            for request, (count, prompt) in zip(requests, step, strict=True):
                target.arena.reserve(request.segment, request.run_len + count)
                ids = request.tokens[request.run_len : request.run_len + count]
                works.append(Work(request, request.run_len, ids, prompt, wants=count))
                order.extend((request.arrival, request.run_len + j) for j in range(count))
                request.run_len += count
            out = target.forward(works)
            if out.logits is not None:
                logits.append(out.logits.float())
    index = torch.tensor(sorted(range(len(order)), key=lambda i: order[i]), device=target.device)
    _check_calls(target)
    called = [call.index for call in target.binding.calls()]
    return [torch.cat(collected[i])[index] for i in called], torch.cat(logits)[index]


def _check_calls(target: Target) -> None:
    name = type(target.model).__name__
    calls = target.binding.calls()
    if len(calls) < target.info.num_layers:
        seen = sorted({getattr(target.binding.module_of(call), "layer_idx", -1) for call in calls})
        missing = [i for i in range(target.info.num_layers) if i not in seen]
        message = (
            f"{name} does not run all of its {target.info.num_layers} layers through transformers' attention "
            f"interface (missing: layers {missing}), so that requests of a flat batch would see each other"
        )
        raise TargetError(message)
    for call in calls:
        if call.calls != len(STEPS):
            message = (
                f"layer {call.index} of {name} calls the attention interface {call.calls / len(STEPS):g} times a "
                f"forward, where one call is expected; its keys and values would overwrite each other"
            )
            raise TargetError(message)
    windows = expected_windows(target.model.config, len(calls))
    for call, expected in zip(calls, windows or [call.window for call in calls], strict=True):
        if call.window != expected:
            message = (
                f"layer {call.index} of {name} has a window of {expected} by its configuration, but passes "
                f"{call.window} to the attention interface, so long prompts would come out wrong"
            )
            raise TargetError(message)


def _stock(target: Target, requests: Sequence[Request]) -> tuple[list[Tensor], Tensor]:
    """Run each prompt by itself through the model as transformers has it."""
    modules = [target.binding.module_of(call) for call in target.binding.calls()]
    collected: list[list[Tensor]] = [[] for _ in modules]
    logits = []
    # Other implementations of transformers leave parts out, such as the softcap under sdpa.
    with target.binding.eager(), _outputs(modules, collected), torch.inference_mode():
        for request in requests:
            ids = torch.from_numpy(request.tokens.astype(np.int64)).to(target.device).unsqueeze(0)
            logits.append(target.model(input_ids=ids, use_cache=False).logits[0].float())
    return [torch.cat(place) for place in collected], torch.cat(logits)


def _compare(target: Target, ragged: list[Tensor], stock: list[Tensor]) -> None:
    for index, (mine, theirs) in enumerate(zip(ragged, stock, strict=True)):
        _compare_rows(target, mine, theirs, f"attention layer {index} is the first that differs")


def _compare_rows(target: Target, mine: Tensor, theirs: Tensor, where: str) -> None:
    error = (mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)
    wrong = error > TOLERANCE.get(target.dtype, 2e-3)
    if bool(wrong.float().mean() > WRONG_ROWS_ALLOWED.get(target.dtype, 0.0)) or not bool(error.isfinite().all()):
        message = (
            f"{type(target.model).__name__} gives other results in a flat ragged batch than by itself: {where} "
            f"(relative error {float(error.max()):.3g} in {int(wrong.sum())} of {len(wrong)} rows); it cannot run here"
        )
        raise TargetError(message)
