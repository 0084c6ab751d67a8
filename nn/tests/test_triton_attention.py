"""Attention in Triton: chosen on a GPU, refused on a CPU; laid out by sizes; equal to the definition if interpreted."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels
from specdec_nn.ops.attention.csr_tables import csr_tables, layer_unserved, step_unserved
from specdec_nn.ops.attention.device_tables import SHORT, Sizes
from specdec_nn.ops.attention.launches import Geometry, Gpu, halves, launches_of
from specdec_nn.ops.attention.reference import AttentionStep
from specdec_testing.triton_checks import assert_triton_checks_pass

pytest.importorskip("triton")
LAYERS = (
    Geometry(32, 8, 128, 128, 2),
    Geometry(32, 32, 64, 64, 2),
    Geometry(8, 1, 256, 256, 2),
    Geometry(16, 16, 192, 128, 2),
    Geometry(71, 1, 64, 64, 2),
    Geometry(6, 2, 32, 32, 4),
)


@pytest.mark.slow
def test_triton_passes_its_checks():
    assert_triton_checks_pass(Path(__file__).with_name("triton_attention_checks.py"))


def test_on_a_gpu_triton_is_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert Kernels(Catalog.discover()).backend("attention", "cuda") == "triton"


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets here")
def test_on_a_cpu_triton_is_refused_by_name(monkeypatch):
    kernels = Kernels(Catalog.discover())
    monkeypatch.setenv("SPECDEC_KERNELS", "triton")
    with pytest.raises(ConfigError, match="on a CPU triton runs only in its interpreter"):
        kernels.get("attention", "cpu")
    from specdec_nn.ops.attention.triton import attention

    one = np.zeros(1, np.int32)
    step = AttentionStep(one, one, one + 1, one, one > 0, one[None], 16)
    row, pages = torch.zeros(1, 1, 16), torch.zeros(1, 1, 16, 16)
    with pytest.raises(ConfigError, match=r"attention\.triton was given tensors on a CPU.*TRITON_INTERPRET=1"):
        attention(row, row, row, pages, pages, step, scaling=1.0)


def test_keys_are_loaded_in_powers_of_two_that_waste_little():
    found = {dims: halves(dims) for dims in (5, 16, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)}
    assert found[192] == (128, 64) and found[96] == (64, 32) and found[80] == (64, 16)
    assert found[128] == (128, 0) and found[5] == (16, 0) and found[48] == (32, 16)
    for dims, (first, second) in found.items():
        assert first + second >= dims and all(n == 0 or (n >= 16 and n & (n - 1) == 0) for n in (first, second))


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("sizes", [
    Sizes(1, 1, 256, 0, 1, 0, 8192), Sizes(32, 32, 256, 0, 1, 0, 8192), Sizes(33, 1, 256, 1, 0, 33, 8192),
    Sizes(2080, 33, 8, 0, 1, 2048, 2048), Sizes(8, 8, 256, 0, 8, 0, 8192, True),
], ids=str)  # fmt: skip
def test_every_row_has_a_block_and_blocks_keep_to_their_bounds(layer, sizes):
    for launch in launches_of(sizes, layer, Gpu()):
        tile = launch.tile
        assert launch.rows * layer.group <= tile.block and launch.rows >= 1
        longest = max(sizes.short, sizes.long) if sizes.exact else sizes.short if launch.most == SHORT else sizes.long
        assert launch.rows * launch.blocks >= longest
        assert tile.block >= 16 and tile.block & (tile.block - 1) == 0 and tile.keys >= 16
        assert 1 <= launch.splits <= (64 if not sizes.exact else 8192 // 512)
        if launch.splits > 1:  # partial results stay small beside what the keys of 8k tokens are
            rows = sizes.segments * launch.splits * launch.blocks * tile.block * layer.kv_heads
            assert rows * layer.width < 2**25


def test_few_rows_of_a_long_context_are_split_over_the_whole_gpu_and_many_are_not():
    layer = LAYERS[0]
    (one,) = launches_of(Sizes(1, 1, 256, 0, 1, 0, 8192), layer, Gpu(processors=132))
    assert one.splits * one.blocks * layer.kv_heads >= 2 * 132
    (many,) = launches_of(Sizes(64, 64, 256, 0, 1, 0, 8192), layer, Gpu(processors=132))
    assert many.splits == 1
    (short,) = launches_of(Sizes(1, 1, 4, 0, 1, 0, 128), layer, Gpu(processors=132))
    assert short.splits == 1


def test_with_a_fixed_width_the_layout_of_a_row_does_not_follow_from_the_others():
    layer = LAYERS[0]
    found = [
        launches_of(Sizes(rows, segments, pages, 0, short, long, keys, True), layer, Gpu())[0]
        for rows, segments, pages, short, long, keys in ((8, 1, 4, 1, 0, 100), (8, 8, 9, 3, 0, 90), (32, 1, 9, 0, 9, 9))
    ]  # fmt: skip
    assert len({(launch.tile, launch.chunk, launch.rows) for launch in found}) == 1


def test_flashinfer_is_taken_only_by_name_and_is_refused_where_it_is_not_installed(monkeypatch):
    kernels = Kernels(Catalog.discover())
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    assert kernels.backend("attention", "cpu") != "flashinfer"
    monkeypatch.setenv("SPECDEC_KERNELS", "flashinfer")
    attention = kernels.get("attention", "cuda")
    if importlib.util.find_spec("flashinfer") is not None:
        pytest.skip("FlashInfer is installed")
    one = np.zeros(1, np.int32)
    step = AttentionStep(one, one, one + 1, one, one > 0, one[None], 16)
    row, pages = torch.zeros(1, 1, 64), torch.zeros(1, 1, 16, 64)
    with pytest.raises(ConfigError, match=r"not installed; install specdec-nn\[flashinfer\]"):
        attention(row, row, row, pages, pages, step, scaling=1.0)


def test_the_tables_for_flashinfer_lead_to_the_keys_of_each_segment():
    rng = np.random.default_rng(0)
    rows, context, size = np.array([3, 1, 20], np.int32), np.array([14, 31, 0], np.int32), 16
    table = np.full((3, 5), -1, np.int32)
    order = rng.permutation(40).astype(np.int32)
    for s, count in enumerate(-(-(rows + context) // size)):
        table[s, :count], order = order[:count], order[count:]
    start = (np.cumsum(rows) - rows).astype(np.int32)
    step = AttentionStep(np.zeros(24, np.int32), start, rows, context, rows > 9, table, size)
    assert step_unserved(step) == ""
    found = csr_tables(step)
    assert found.rows.tolist() == [0, 3, 4, 24]
    for s in range(3):
        pages = found.indices[found.pages[s] : found.pages[s + 1]]
        keys = (len(pages) - 1) * size + found.last[s]
        assert keys == rows[s] + context[s] and 1 <= found.last[s] <= size
        assert pages.tolist() == table[s, : len(pages)].tolist()


def test_what_flashinfer_may_not_run_is_told():
    one = np.zeros(1, np.int32)
    plain = AttentionStep(one, one, one + 1, one, one > 0, one[None], 16)
    told = {
        "decode_width": dataclasses.replace(plain, fixed_width=True),
        "token trees": dataclasses.replace(plain, seg_tree=one, ancestors=np.ones((1, 1), np.int64)),
        "see each other": dataclasses.replace(plain, seg_mutual=one == 0),
        "one after the other": dataclasses.replace(plain, seg_start=one + 1),
    }
    assert step_unserved(plain) == "" and step_unserved(dataclasses.replace(plain, seg_tree=one - 1)) == ""
    assert all(text in step_unserved(step) for text, step in told.items())
    layer = LAYERS[0]
    assert layer_unserved(layer, None, sinks=False) == ""
    assert "windows" in layer_unserved(layer, 128, sinks=False) and "sinks" in layer_unserved(layer, None, sinks=True)
    assert "192" in layer_unserved(LAYERS[3], None, sinks=False)
    assert "float32" in layer_unserved(LAYERS[5], None, sinks=False)
