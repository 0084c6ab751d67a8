"""A transformers model cut behind one of its layers, sharing all modules, and the trial that it must pass.

The cut model is the same embedding, the first layers, the final norm and the head. Its attention layers have the same
numbers in a KV arena as those of the whole model, so that either can read what the other has written.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.errors import TargetError
from specdec_core.registry.kernels import Kernels
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.hf.families import text_config
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import TOLERANCE, probe
from specdec_nn.ops.attention.reference import AttentionStep

PROMPT, BEHIND = 11, 3  # ids of the trial that the whole model runs, and rows that follow in the cut one


def first_layers(flat: FlatModel, count: int, kernels: Kernels) -> FlatModel:
    """Return the first `count` layers of a model that has passed its own trial, as a model of their own.

    Raises TargetError with the reason where the model cannot be cut there: its layers are not in one list, its code
    does not run a shorter one, or the states behind layer `count` are not those of the whole model.
    """
    name = type(flat.model).__name__
    if not 1 <= count < flat.num_layers:
        message = f"{name} has {flat.num_layers} layers, so that {count} of them are no part: 1..{flat.num_layers - 1}"
        raise TargetError(message)
    try:
        part = FlatModel(_cut(flat, count), count, flat.vocab_size, kernels)
        probe(part)
        if flat.fused is not None:
            from specdec_nn.fused.trial import fuse

            fuse(part)
        _try(flat, part)
    except (TargetError, AttributeError, TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:
        message = f"{name} cannot be run to layer {count} by itself: {error}"
        raise TargetError(message) from error
    return part


def exit_states(part: FlatModel, ids: Tensor, positions: Tensor, step: AttentionStep, arena: KVArena) -> Tensor:
    """Run rows through a cut model as `FlatModel.run` does, and return the residual stream behind it, [N, H]."""
    if part.num_layers not in part.taps:
        part.tap((part.num_layers,))
    part.run(ids, positions, step, arena, None)
    return part.tapped[part.num_layers]


def _cut(flat: FlatModel, count: int) -> nn.Module:
    """Return copies of the modules that lead to the list of layers, with that list cut; all else is shared."""
    layers = flat.decoder_layers()
    places = {
        path: module
        for path, module in flat.model.named_modules()
        if isinstance(module, nn.ModuleList) and list(module) == layers
    }
    path = next(iter(places))
    root = parent = _copy(flat.model, count)
    *above, last = path.split(".")
    for name in above:
        child = _copy(getattr(parent, name), count)
        parent._modules[name] = child
        parent = child
    parent._modules[last] = nn.ModuleList(layers[:count])
    return root


def _copy(module: nn.Module, count: int) -> nn.Module:
    """Return a module with the same parameters and children, a configuration of `count` layers, and no hooks."""
    made: nn.Module = module.__new__(type(module))
    made.__dict__ = {
        name: type(value)() if name.startswith("_") and name.endswith("hooks") and isinstance(value, dict) else value
        for name, value in module.__dict__.items()
    }
    made._modules = dict(module._modules)
    config: Any = getattr(module, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        made.config = copy.deepcopy(config)
        text: Any = text_config(made.config)
        types = getattr(text, "layer_types", None)
        if types is not None:
            text.layer_types = list(types)[:count]
        text.num_hidden_layers = count
    return made


def _try(flat: FlatModel, part: FlatModel) -> None:
    """Raise TargetError unless the part, over keys and values of the whole model, makes the states that it makes."""
    arena = flat.new_arena(PROMPT + BEHIND + 64)
    cache, length = DraftCache(arena), PROMPT + BEHIND
    cache.open("0")
    ids = (torch.arange(length) * 37 + 5) % min(flat.vocab_size, 30000)
    taps, rows = flat.taps, torch.arange(BEHIND)
    found: list[Tensor] = []
    try:
        for model in (flat, part):
            model.tap((part.num_layers,))
            cache.cut("0", 0)
            # Both runs begin with the whole model's keys and values, and only it writes those of the prompt.
            flat.run(ids[:PROMPT], torch.arange(PROMPT), cache.append(["0"], [PROMPT], [PROMPT]), arena, None)
            step = cache.append(["0"], [BEHIND])
            model.run(ids[PROMPT:], torch.arange(PROMPT, length), step, arena, rows)
            found.append(model.tapped[part.num_layers].float())
    finally:
        flat.tap(taps)
        part.tap(())
    whole, cut = found
    error = (cut - whole).norm(dim=-1) / whole.norm(dim=-1).clamp_min(1e-6)
    if not bool((error <= TOLERANCE.get(flat.dtype, 2e-3)).all()):
        message = f"the states behind it differ from those of the whole model (relative error {float(error.max()):.3g})"
        raise TargetError(message)
