"""The trial every model passes at load: two requests in ragged pieces must give what the stock forward gives.

Wrong drafts run between the pieces and are taken back. It finds models that never call the attention interface, swallow
its keywords, call it twice, mix requests, or keep states in a way that is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specdec_core.errors import TargetError
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.hf.families import expected_windows, layers_of_rows
from specdec_nn.hf.model import FlatModel

LENGTHS = (9, 14)


class Piece(NamedTuple):
    """Rows of one prompt in one step: `certain` ones, then drafts of which the first `accepted` are right."""

    certain: int
    prompt: bool = False
    accepted: int = 0
    wrong: int = 0


# Pieces of the two prompts that run together: a first chunk of each; decode rows beside a chunk; drafts of which some
# or all are rejected; decode rows behind them.
STEPS: tuple[tuple[Piece, Piece], ...] = (
    (Piece(4, prompt=True), Piece(6, prompt=True)),
    (Piece(1, accepted=1, wrong=2), Piece(3, prompt=True)),
    (Piece(1, wrong=3), Piece(1, accepted=1)),
    (Piece(2), Piece(3)),
)
# A row counts as wrong when its error, relative to the norm of the stock row, is above this.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.08, torch.float16: 0.03}
# In low precision a near-tie in an expert router may send a few rows another way in the stock forward, too.
WRONG_ROWS_ALLOWED = {torch.bfloat16: 0.2, torch.float16: 0.2}


def probe(flat: FlatModel) -> int:
    """Run the trial and return the KV bytes of one token over all layers; `flat` learns the bytes of its states.

    Raises TargetError naming the first layer that differs, or those whose rows see each other in unknown ways.
    """
    texts = [_text(flat, i, length) for i, length in enumerate(LENGTHS)]
    arena = flat.new_arena(4 * sum(LENGTHS) + 256)
    try:
        ragged, ragged_logits = _ragged(flat, texts, arena)
    except (TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
        name = type(flat.model).__name__
        unused = "" if flat.binding.called() else ", and it does not use transformers' attention interface"
        message = f"{name} fails in a flat ragged batch{unused}: {type(error).__name__}: {error}"
        raise TargetError(message) from error
    stock, stock_logits = _stock(flat, texts)
    _compare(flat, ragged, stock)
    _compare_rows(flat, ragged_logits, stock_logits, "the logits differ although every such layer agrees")
    if arena.states is not None:
        flat.state_bytes = arena.states.bytes_per_request(0)
        flat.state_row_bytes = arena.states.bytes_per_request(1) - flat.state_bytes
    return arena.rows_bytes() // arena.num_tokens


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
    """Run the pieces; return the output of each module that ran and the logits, rows in order of (text, position)."""
    candidates = flat.binding.modules
    collected: list[list[Tensor]] = [[] for _ in candidates]
    logits: list[Tensor] = []
    order: list[tuple[int, int] | None] = []  # None: a wrong draft
    cache, names, done = DraftCache(arena), [str(i) for i in range(len(texts))], [0] * len(texts)
    for name in names:
        cache.open(name)
    flat.binding.reset_calls()
    with _outputs(candidates, collected):
        for pieces in STEPS:
            rights = [piece.certain + piece.accepted for piece in pieces]
            counts = [right + piece.wrong for right, piece in zip(rights, pieces, strict=True)]
            step = cache.append(names, counts, [piece.certain for piece in pieces])
            step.seg_prompt[:] = [piece.prompt for piece in pieces]
            ids: list[Tensor] = []
            positions: list[int] = []
            whole: list[int] = []
            for i, (text, right, count) in enumerate(zip(texts, rights, counts, strict=True)):
                ids += [text[done[i] : done[i] + right], (text[: count - right] + 1) % flat.vocab_size]
                positions += range(done[i], done[i] + count)
                whole += [len(text)] * count
                order += [(i, done[i] + n) if n < right else None for n in range(count)]
                done[i] += right
                cache.cut(names[i], done[i])
            out = flat.run(
                torch.cat(ids), torch.tensor(positions), step, arena, torch.arange(len(positions)), torch.tensor(whole)
            )
            if out is not None:
                logits.append(out.float())
    right_rows = [row for row, place in enumerate(order) if place is not None]
    index = torch.tensor(sorted(right_rows, key=lambda row: order[row] or (0, 0))).to(flat.device)
    _check_calls(flat)
    called = flat.binding.called()
    outputs = [torch.cat(rows)[index] for module, rows in zip(candidates, collected, strict=True) if module in called]
    return outputs, torch.cat(logits)[index]


def _check_calls(flat: FlatModel) -> None:
    name = type(flat.model).__name__
    calls, called = flat.binding.calls(), flat.binding.called()
    seen = {getattr(module, "layer_idx", -1) for module in called} | layers_of_rows(flat.model.config)
    missing = [i for i in range(flat.num_layers) if i not in seen]
    if missing:
        message = (
            f"{name} does not run all of its {flat.num_layers} layers through transformers' attention interface or a "
            f"mixer with states that is known here (missing: {_named(flat, missing)}), so that requests of a flat "
            f"batch would see each other"
        )
        raise TargetError(message)
    for module, count in called.items():
        if count != len(STEPS):
            message = (
                f"layer {_index(flat, module)} of {name} calls the attention interface {count / len(STEPS):g} times a "
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
    modules = list(flat.binding.called())
    collected: list[list[Tensor]] = [[] for _ in modules]
    logits = []
    # Other implementations of transformers leave parts out, such as the softcap under sdpa.
    with flat.binding.eager(), _outputs(modules, collected), torch.inference_mode():
        for text in texts:
            ids = text.to(flat.device).unsqueeze(0)
            logits.append(flat.model(input_ids=ids, use_cache=False).logits[0].float())
    return [torch.cat(place) for place in collected], torch.cat(logits)


def _compare(flat: FlatModel, ragged: list[Tensor], stock: list[Tensor]) -> None:
    for module, mine, theirs in zip(flat.binding.called(), ragged, stock, strict=True):
        where = f"{type(module).__name__} in layer {getattr(module, 'layer_idx', None)} is the first that differs"
        _compare_rows(flat, mine, theirs, where)


def _index(flat: FlatModel, module: nn.Module) -> int:
    """Return a module's place among those that may be attention or a mixer."""
    return flat.binding.modules.index(module)


def _named(flat: FlatModel, layers: Sequence[int]) -> str:
    """Return numbers of layers, with what stands in them where that is known."""
    kinds: dict[int, set[str]] = {}
    for module in flat.binding.modules:
        kinds.setdefault(int(module.layer_idx), set()).add(type(module).__name__)  # type: ignore[arg-type] # untyped
    return ", ".join(f"layer {i} ({'/'.join(sorted(kinds[i]))})" if i in kinds else f"layer {i}" for i in layers)


def _compare_rows(flat: FlatModel, mine: Tensor, theirs: Tensor, where: str) -> None:
    error = (mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)
    wrong = error > TOLERANCE.get(flat.dtype, 2e-3)
    if bool(wrong.float().mean() > WRONG_ROWS_ALLOWED.get(flat.dtype, 0.0)) or not bool(error.isfinite().all()):
        message = (
            f"{type(flat.model).__name__} gives other results in a flat ragged batch than by itself: {where} "
            f"(relative error {float(error.max()):.3g} in {int(wrong.sum())} of {len(wrong)} rows); it cannot run here"
        )
        raise TargetError(message)
