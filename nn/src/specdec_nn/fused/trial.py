"""The trial of the fused pass at load: rows of two requests must give what the modules give, at every layer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.fused.unfit import Unfit
from specdec_nn.hf.families import text_config
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import TOLERANCE

if TYPE_CHECKING:
    from specdec_nn.fused.stack import FusedStack

# Rows of the two requests that run together, as a chunk of a prompt or one after the other.
STEPS: tuple[tuple[tuple[int, bool], tuple[int, bool]], ...] = (((5, True), (7, True)), ((4, False), (3, False)))

logger = logging.getLogger("specdec_nn.fused")


def fuse(flat: FlatModel) -> str | None:
    """Give a model that has passed `specdec_nn.hf.probe.probe` a fused pass, where it can have one.

    Returns why it has none, which is logged once a load; None if it has one.
    """
    reason = flat.unfused = _try(flat)
    if reason is not None:
        logger.info("%s runs through its modules: %s", type(flat.model).__name__, reason)
    return reason


def _try(flat: FlatModel) -> str | None:
    if flat.device.type != "cpu":
        return f"the fused pass is for CPUs, and this is {flat.device}"
    other = [op for op, backend in flat.backends.items() if backend != "numba"]
    if other:
        return f"the kernels of {' and '.join(other)} are not those of numba"
    from specdec_nn.fused.recognise import recognise
    from specdec_nn.fused.stack import FusedStack

    try:
        fused = FusedStack(recognise(flat))
        _compare(flat, fused)
    except Unfit as unfit:
        return str(unfit)
    flat.fused = fused
    return None


def _compare(flat: FlatModel, fused: FusedStack) -> None:
    """Raise Unfit where some rows of the residual stream, final states or logits differ."""
    flat.tap(range(flat.num_layers + 1))
    try:
        by_modules = _run(flat, None)
        by_pass = _run_pass(flat, fused)
    finally:
        flat.tap(())
        flat.fused = None
    for name, theirs in by_modules.items():
        mine = by_pass[name]
        error = (mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)
        if not bool((error <= TOLERANCE.get(flat.dtype, 2e-3)).all()):
            raise Unfit(
                f"{name} differs from that of the modules (relative error {float(error.max()):.3g}), so they do "
                f"something that the pass does not know of"
            )


def _run_pass(flat: FlatModel, fused: FusedStack) -> dict[str, Tensor]:
    """Run the pass below the model's own head; raises Unfit if the head reads more than final states."""
    try:
        return _run(flat, fused)
    except (AttributeError, KeyError, TypeError) as error:
        raise Unfit(f"what is around its decoder reads more than final states ({error})") from error


def _run(flat: FlatModel, fused: FusedStack | None) -> dict[str, Tensor]:
    """Return what every layer is given, and the logits; rows in order of steps.

    The second request stands far on, where a position may count for more than its rotary embedding.
    """
    flat.fused = fused
    arena = flat.new_arena(256)
    cache, names = DraftCache(arena), ["0", "1"]
    last = int(getattr(text_config(flat.model.config), "max_position_embeddings", 0) or 0)
    offsets = [0, max(0, last - sum(counts[1][0] for counts in STEPS))]
    found: dict[str, list[Tensor]] = {}
    for name in names:
        cache.open(name)
    done = [0, 0]
    for pieces in STEPS:
        counts = [count for count, _ in pieces]
        step = cache.append(names, counts, counts)
        step.seg_prompt[:] = [prompt for _, prompt in pieces]
        spans: list[Any] = [torch.arange(start, start + count) for start, count in zip(done, counts, strict=True)]
        ids = torch.cat([(span * 37 + 11 * i + 5) % min(flat.vocab_size, 30000) for i, span in enumerate(spans)])
        positions = torch.cat([span + offset for span, offset in zip(spans, offsets, strict=True)])
        logits = flat.run(ids, positions, step, arena, torch.arange(len(ids)))
        assert logits is not None
        for k in range(flat.num_layers + 1):
            found.setdefault(f"the input of layer {k}", []).append(flat.tapped[k].float())
        found.setdefault("the logits", []).append(logits.float())
        done = [start + count for start, count in zip(done, counts, strict=True)]
    return {name: torch.cat(parts) for name, parts in found.items()}
