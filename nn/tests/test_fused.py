"""The fused pass by itself: rows that do not feel their neighbours, states at layers, weights that exist once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("numba")

from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.fused.stack import FusedStack
from specdec_nn.fused.trial import fuse
from specdec_nn.hf.binding import packed_linear
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import probe
from specdec_nn.ops.linear.numba import PANEL
from specdec_testing.targets import tiny_target

CONTEXT = 20


def made(family: str, dtype: torch.dtype, **config: Any) -> tuple[FlatModel, FusedStack]:
    model = tiny_target(family, dtype=dtype, **config)
    flat = FlatModel(model, model.config.num_hidden_layers, 128, Registry(Catalog.discover()).kernels)
    probe(flat)
    assert fuse(flat) is None
    assert flat.fused is not None
    return flat, flat.fused


def rows_of(flat: FlatModel, counts: list[int], taps: list[int]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Logits and tapped states of the rows after a context of CONTEXT, in pieces of so many rows."""
    arena = flat.new_arena(256)
    cache = DraftCache(arena)
    cache.open("a")
    ids = torch.arange(CONTEXT + sum(counts)) * 7 % 120
    flat.tap(taps)
    logits: list[torch.Tensor] = []
    tapped: dict[int, list[torch.Tensor]] = {k: [] for k in taps}
    done = 0
    for count in [CONTEXT, *counts]:
        step = cache.append(["a"], [count], [count])
        part = torch.arange(done, done + count)
        out = flat.run(ids[part], part, step, arena, torch.arange(count))
        assert out is not None
        if done:
            logits.append(out)
            for k in taps:
                tapped[k].append(flat.tapped[k])
        done += count
    flat.tap([])
    return torch.cat(logits), {k: torch.cat(states) for k, states in tapped.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(family: str, dtype: torch.dtype) -> None:
    flat, _ = made(family, dtype)
    alone, _ = rows_of(flat, [1] * 12, [])
    for counts in ([12], [5, 7], [2, 1, 9]):
        assert torch.equal(rows_of(flat, counts, [])[0], alone)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_threads_with_several_parts_of_a_layer_write_the_same_bits(family: str) -> None:
    """Layers of the usual tiny width have one part for each of two threads; the last of these is not a whole one."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            flat, _ = made(family, torch.bfloat16, intermediate_size=7 * PANEL + 32)
            found.append(rows_of(flat, [1, 11], [])[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(logits, found[0]) for logits in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "granite"])
def test_logits_and_states_at_layers_are_those_of_the_modules(family: str, dtype: torch.dtype) -> None:
    flat, fused = made(family, dtype)
    taps = list(range(flat.num_layers + 1))
    logits, states = rows_of(flat, [1, 6, 4], taps)
    flat.fused = None
    other_logits, other_states = rows_of(flat, [1, 6, 4], taps)
    flat.fused = fused
    bound = {"rtol": 1e-4, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 0.03, "atol": 0.06}
    torch.testing.assert_close(logits, other_logits, **bound)
    for k in taps:
        torch.testing.assert_close(states[k], other_states[k], **bound)


def test_the_pass_and_the_modules_read_one_weight() -> None:
    flat, fused = made("llama", torch.float32)
    layer: Any = flat.decoder.layers[0]  # type: ignore[index]
    packed, form = fused.stack.blocks[0].products["q"]
    assert packed is packed_linear(layer.self_attn.q_proj)
    assert packed.form is form
    assert form.weight_at == layer.self_attn.q_proj.weight.data_ptr(), "and not copied"


def test_the_pass_leaves_the_model_without_hooks_or_forwards_of_its_own() -> None:
    flat, _ = made("llama", torch.float32)
    rows_of(flat, [3, 2], [0, 1])
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in flat.model.modules())
    assert all("forward" not in module.__dict__ for module in flat.model.modules())
