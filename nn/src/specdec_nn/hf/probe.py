"""The trial every model passes at load: two requests in ragged pieces must give what the stock forward gives.

It finds models that never call the attention interface, swallow its keywords, call it twice, or mix requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.errors import TargetError
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.hf.families import expected_windows
from specdec_nn.hf.model import FlatModel

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


def probe(flat: FlatModel) -> int:
    """Run the trial and return the KV bytes of one token over all layers.

    Raises TargetError naming the first layer that differs, or the layers that do not use the attention interface.
    """
    texts = [_text(flat, i, length) for i, length in enumerate(LENGTHS)]
    arena = flat.new_arena(4 * sum(LENGTHS) + 256)
    try:
        ragged, ragged_logits = _ragged(flat, texts, arena)
    except (TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
        name = type(flat.model).__name__
        unused = "" if flat.binding.calls() else ", and it does not use transformers' attention interface"
        message = f"{name} fails in a flat ragged batch{unused}: {type(error).__name__}: {error}"
        raise TargetError(message) from error
    stock, stock_logits = _stock(flat, texts)
    _compare(flat, ragged, stock)
    _compare_rows(flat, ragged_logits, stock_logits, "the logits differ although every attention layer agrees")
    return arena.memory_bytes() // arena.num_tokens


def _text(flat: FlatModel, index: int, length: int) -> Tensor:
    return (torch.arange(length) * 37 + 11 * index + 5) % min(flat.vocab_size, 30000)


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


def _ragged(flat: FlatModel, texts: Sequence[Tensor], arena: KVArena) -> tuple[list[Tensor], Tensor]:
    """Run the pieces; return each attention layer's output and the logits, rows in order of (text, position)."""
    candidates = flat.binding.modules
    collected: list[list[Tensor]] = [[] for _ in candidates]
    logits: list[Tensor] = []
    order: list[tuple[int, int]] = []
    cache, names, done = DraftCache(arena), [str(i) for i in range(len(texts))], [0] * len(texts)
    for name in names:
        cache.open(name)
    flat.binding.reset_calls()
    with _outputs(candidates, collected):
        for pieces in STEPS:
            counts = [count for count, _ in pieces]
            step = cache.append(names, counts, counts)
            step.seg_prompt[:] = [prompt for _, prompt in pieces]
            spans = [range(start, start + count) for start, count in zip(done, counts, strict=True)]
            ids = torch.cat([text[span.start : span.stop] for text, span in zip(texts, spans, strict=True)])
            positions = torch.tensor([position for span in spans for position in span])
            order.extend((i, position) for i, span in enumerate(spans) for position in span)
            done = [span.stop for span in spans]
            whole = [len(text) for text, span in zip(texts, spans, strict=True) for _ in span]
            out = flat.run(ids, positions, step, arena, torch.arange(len(ids)), torch.tensor(whole))
            if out is not None:
                logits.append(out.float())
    index = torch.tensor(sorted(range(len(order)), key=lambda i: order[i]), device=flat.device)
    _check_calls(flat)
    called = [call.index for call in flat.binding.calls()]
    return [torch.cat(collected[i])[index] for i in called], torch.cat(logits)[index]


def _check_calls(flat: FlatModel) -> None:
    name = type(flat.model).__name__
    calls = flat.binding.calls()
    if len(calls) < flat.num_layers:
        seen = sorted({getattr(flat.binding.module_of(call), "layer_idx", -1) for call in calls})
        missing = [i for i in range(flat.num_layers) if i not in seen]
        message = (
            f"{name} does not run all of its {flat.num_layers} layers through transformers' attention "
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
    windows = expected_windows(flat.model.config, len(calls))
    for call, expected in zip(calls, windows or [call.window for call in calls], strict=True):
        if call.window != expected:
            message = (
                f"layer {call.index} of {name} has a window of {expected} by its configuration, but passes "
                f"{call.window} to the attention interface, so long prompts would come out wrong"
            )
            raise TargetError(message)


def _stock(flat: FlatModel, texts: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Run each prompt by itself through the model as transformers has it."""
    modules = [flat.binding.module_of(call) for call in flat.binding.calls()]
    collected: list[list[Tensor]] = [[] for _ in modules]
    logits = []
    # Other implementations of transformers leave parts out, such as the softcap under sdpa.
    with flat.binding.eager(), _outputs(modules, collected), torch.inference_mode():
        for text in texts:
            ids = text.to(flat.device).unsqueeze(0)
            logits.append(flat.model(input_ids=ids, use_cache=False).logits[0].float())
    return [torch.cat(place) for place in collected], torch.cat(logits)


def _compare(flat: FlatModel, ragged: list[Tensor], stock: list[Tensor]) -> None:
    for index, (mine, theirs) in enumerate(zip(ragged, stock, strict=True)):
        _compare_rows(flat, mine, theirs, f"attention layer {index} is the first that differs")


def _compare_rows(flat: FlatModel, mine: Tensor, theirs: Tensor, where: str) -> None:
    error = (mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)
    wrong = error > TOLERANCE.get(flat.dtype, 2e-3)
    if bool(wrong.float().mean() > WRONG_ROWS_ALLOWED.get(flat.dtype, 0.0)) or not bool(error.isfinite().all()):
        message = (
            f"{type(flat.model).__name__} gives other results in a flat ragged batch than by itself: {where} "
            f"(relative error {float(error.max()):.3g} in {int(wrong.sum())} of {len(wrong)} rows); it cannot run here"
        )
        raise TargetError(message)
