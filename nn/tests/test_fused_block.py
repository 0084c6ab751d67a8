"""A drafter's block in one call of the compiled pass gives what its parts give; a row does not feel its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.layers.block import Block, _log_once
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.rotary import Rotary

WIDTH, INNER, HEADS, KV, DIMS = 96, 80, 6, 2, 32
CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def block(dtype: torch.dtype, inputs: int = WIDTH, extra: tuple[str, ...] = (), **config: Any) -> tuple[Block, Rotary]:
    """Return a block of random weights; `extra` are tensors that it has besides."""
    torch.manual_seed(0)
    shapes = {
        "self_attn.q_proj.weight": (HEADS * DIMS, inputs),
        "self_attn.k_proj.weight": (KV * DIMS, inputs),
        "self_attn.v_proj.weight": (KV * DIMS, inputs),
        "self_attn.o_proj.weight": (WIDTH, HEADS * DIMS),
        "mlp.gate_proj.weight": (INNER, WIDTH),
        "mlp.up_proj.weight": (INNER, WIDTH),
        "mlp.down_proj.weight": (WIDTH, INNER),
        "self_attn.q_proj.bias": (HEADS * DIMS,),
        "self_attn.o_proj.bias": (WIDTH,),
        "self_attn.q_norm.weight": (DIMS,),
        "self_attn.k_norm.weight": (DIMS,),
        "self_attn.sinks": (HEADS,),
        "post_attention_layernorm.weight": (WIDTH,),
    }
    wanted = {name for name in shapes if name.endswith("_proj.weight") or name.startswith("post")} | set(extra)
    tensors = {
        name: (torch.randn(shape) / (shape[-1] ** 0.5 if len(shape) == 2 else 1.0)).to(dtype)
        for name, shape in shapes.items()
        if name in wanted
    }
    sizes = BlockConfig(heads=HEADS, kv_heads=KV, head_dim=DIMS, eps=1e-5, **config)
    rope = {"rope_theta": 10000.0, "max_position_embeddings": 256}
    rotary = Rotary(rope, DIMS // 2 if "half" in extra else DIMS, 256, CPU, dtype)
    return Block(tensors, sizes, rotary, Registry(Catalog.discover()).kernels, CPU, 0), rotary


def given(dtype: torch.dtype, rows: int, inputs: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, width, generator=generator).to(dtype) for width in (inputs, WIDTH))  # type: ignore[return-value] # two of them


def states(made: tuple[Block, Rotary], dtype: torch.dtype, inputs: int, names: list[str]) -> dict[str, Tensor]:
    """Return what comes of a prompt, of a row, and of three children of it, of each request; by request."""
    own, rotary = made
    cache = DraftCache(KVArena(512, CPU))
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for name in names:
        cache.open(name)
    done = 0
    for count, parents in ((37, None), (1, None), (3, [-1, 0, 0])):
        rows = [given(dtype, count, inputs, 10 * ord(name) + done) for name in names]
        x, residual = (torch.cat(parts) for parts in zip(*rows, strict=True))
        stays = [0 if parents else count] * len(names)
        step = cache.append(names, [count] * len(names), stays, parents=parents and parents * len(names))
        positions = torch.arange(done, done + count).repeat(len(names))
        with torch.inference_mode():
            out = own(x, residual, rotary.at(positions), cache.arena, step)
        for name, part in zip(names, out.split(count), strict=True):
            found[name].append(part.float())
        done += count
    return {name: torch.cat(parts) for name, parts in found.items()}


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two vectors side by side": {"inputs": 2 * WIDTH},
    "biases": {"extra": ("self_attn.q_proj.bias", "self_attn.o_proj.bias")},
    "norms of heads": {"extra": ("self_attn.q_norm.weight", "self_attn.k_norm.weight")},
    "sinks": {"extra": ("self_attn.sinks",)},
    "window": {"window": 9},
    "scaled": {"scaling": 0.3, "residual_scale": 0.4},
    "tanh": {"activation": "gelu_pytorch_tanh"},
    "half of a head turns": {"extra": ("half",)},
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_pass_gives_what_the_parts_give(case: str, dtype: torch.dtype) -> None:
    made, inputs = block(dtype, **CASES[case]), CASES[case].get("inputs", WIDTH)
    assert made[0].fused is not None
    by_pass = states(made, dtype, inputs, ["a", "b"])
    made[0].fused = None
    by_parts = states(made, dtype, inputs, ["a", "b"])
    for name, wanted in by_parts.items():
        error = (by_pass[name] - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert error.max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_request_does_not_feel_its_neighbours(dtype: torch.dtype) -> None:
    made = block(dtype)
    alone, together = (states(made, dtype, WIDTH, names) for names in (["a"], ["b", "a", "c"]))
    assert torch.equal(alone["a"], together["a"])


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"l2_norm": True}, "after they are turned"), ({"activation": "relu"}, "activation is 'relu'")],
    ids=["l2 norm", "relu"],
)
def test_what_the_pass_does_not_know_runs_by_its_parts_for_a_reason_in_the_log(
    config: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    _log_once.cache_clear()
    with caplog.at_level("INFO", logger="specdec_nn.layers"):
        own, _ = made = block(torch.float32, **config)
    assert own.fused is None
    assert [reason in record.message for record in caplog.records] == [True]
    assert states(made, torch.float32, WIDTH, ["a"])["a"].isfinite().all()
