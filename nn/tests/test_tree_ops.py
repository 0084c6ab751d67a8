"""The ops of token trees: the bits of ancestors, and moving an accepted path's keys and values together."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec_nn.cache.arena import KVArena, Segment
from specdec_nn.ops.ancestor_bits.reference import ancestor_bits_reference, ancestor_lists, depths
from specdec_nn.ops.compact.reference import compact_reference

trees_numba = pytest.importorskip("specdec_nn.ops.ancestor_bits.numba")
compact_numba = pytest.importorskip("specdec_nn.ops.compact.numba")

BITS = {"reference": ancestor_bits_reference, "numba": trees_numba.ancestor_bits}
COMPACT = {"reference": compact_reference, "numba": compact_numba.compact}
# parents -> mask rows by the definition in docs/sources.md, by hand: column = row of the tree, newest id first.
KNOWN = [
    ([-1, -1, 0], "1000 1100 1010 1101", [0, 1, 1, 2]),
    ([-1, -1, 0, 1, 2], "100000 110000 101000 110100 101010 110101", [0, 1, 1, 2, 2, 3]),
]


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(("parents", "mask", "levels"), KNOWN)
@pytest.mark.parametrize("op", BITS)
def test_the_bits_are_the_published_masks(op, parents, mask, levels):
    bits = BITS[op](int32(parents), [len(parents)])
    rows = ["".join(str(int(row) >> b & 1) for b in range(len(parents) + 1)) for row in bits[:, 0].tolist()]
    assert " ".join(rows) == mask
    assert depths(bits.numpy()).tolist() == levels


@pytest.mark.parametrize("op", BITS)
def test_the_bits_of_a_row_are_its_path_to_the_newest_id(op):
    rng = np.random.default_rng(0)
    for trial in range(30):
        lengths = [int(n) for n in rng.integers(0, (8, 70, 300)[trial % 3], int(rng.integers(1, 5)))]
        parents = [[int(rng.integers(max(-1, i - 9), i)) for i in range(n)] for n in lengths]
        bits = BITS[op](int32([*itertools.chain(*parents)]), lengths)
        assert bits.dtype is torch.int64 and bits.shape == (sum(lengths) + len(lengths), (max(lengths) + 64) // 64)
        ends, ancestors = ancestor_lists(bits.numpy())
        row = 0
        for tree in parents:
            for node in range(-1, len(tree)):
                path = [node + 1]
                while path[0]:
                    path.insert(0, tree[path[0] - 1] + 1)
                assert ancestors[ends[row] : ends[row + 1]].tolist() == path
                row += 1
        assert row == len(bits)


@pytest.mark.parametrize("op", BITS)
def test_no_trees_have_no_rows(op):
    assert BITS[op](int32([]), []).shape == (0, 1)
    assert BITS[op](int32([]), [0, 0]).tolist() == [[1], [1]]


def filled(op, layers=((2, 5, 3), (3, 8, 8)), dtype=torch.bfloat16, page_size=7):
    """An arena with random pages in two layers of different shape, and three segments."""
    torch.manual_seed(0)
    arena = KVArena(400, torch.device("cpu"), page_size=page_size, compact=COMPACT[op])
    for index, (heads, dims, width) in enumerate(layers):
        k, v = (torch.zeros(1, heads, size, dtype=dtype) for size in (dims, width))
        for pages in arena.layer(index, k, v):
            pages.copy_(torch.randn(pages.shape))
    segments = [Segment(), Segment(), Segment()]
    for count in (10, 60, 125):  # reserved in turns, so that pages of a segment are not neighbours
        for segment in segments:
            assert arena.reserve(segment, count)
    return arena, segments


def rows(arena, segment, count=125):
    """Keys and values of a segment's rows in all layers, [count, ...] each."""
    slots = torch.from_numpy(arena.slots(segment, 0, count).astype(np.int64))
    pages = [pages for index in (0, 1) for pages in arena._layers[index]]
    return [p[slots // arena.page_size, :, slots % arena.page_size].clone() for p in pages]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", COMPACT)
def test_kept_nodes_stand_in_order_and_nothing_else_has_moved(op, dtype):
    rng = np.random.default_rng(1)
    for _ in range(20):
        arena, segments = filled(op, dtype=dtype)
        before = [rows(arena, segment) for segment in segments]
        accepted, wanted = [], []
        for segment, old in zip(segments, before, strict=True):
            start = int(rng.integers(0, 60))
            path = np.sort(rng.choice(60, int(rng.integers(0, 40)), replace=False)).astype(np.int32)
            order = np.arange(125)
            order[start : start + len(path)] = start + path
            accepted.append((segment, start, path))
            wanted.append([part[torch.from_numpy(order)] for part in old])
        arena.keep(accepted[:2])
        arena.keep(iter(accepted[2:]))
        for segment, want in zip(segments, wanted, strict=True):
            assert all(map(torch.equal, rows(arena, segment), want))


def test_backends_agree_where_the_work_is_shared_among_cores():
    results = []
    for op in COMPACT:
        arena, segments = filled(op, layers=((8, 64, 64), (8, 64, 64)), dtype=torch.float32, page_size=16)
        path = np.arange(40, 100, dtype=np.int32)
        assert 4 * len(path) * 8 * 64 * 4 > compact_numba.ALONE
        arena.keep([(segments[1], 3, path)])
        results.append(rows(arena, segments[1]))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("op", COMPACT)
def test_a_path_that_moves_nothing_calls_no_kernel(op):
    arena, segments = filled(op)

    def fail(*arguments):
        raise AssertionError(arguments)

    arena._compact = fail
    arena.keep([])
    arena.keep([(segments[0], 5, np.arange(4, dtype=np.int32)), (segments[1], 9, np.empty(0, np.int32))])


@pytest.mark.parametrize("path", [[1, 1], [2, 1], [-1, 2]])
def test_a_path_that_does_not_ascend_is_refused_and_moves_nothing(path):
    arena, segments = filled("numba")
    before = [rows(arena, segment) for segment in segments]
    with pytest.raises(ValueError, match="must ascend"):
        arena.keep([(segments[0], 0, np.array([3, 5], np.int32)), (segments[1], 4, np.array(path, np.int32))])
    assert all(all(map(torch.equal, rows(arena, s), b)) for s, b in zip(segments, before, strict=True))


@pytest.mark.parametrize("op", COMPACT)
def test_a_layer_that_comes_later_is_moved_too(op):
    arena, segments = filled(op)
    arena.keep([(segments[0], 0, np.array([1], np.int32))])
    late = torch.zeros(1, 1, 4)
    pages = arena.layer(7, late, late)
    for part in pages:
        part.copy_(torch.randn(part.shape))
    source, target = (int(arena.slots(segments[0], n, 1)[0]) for n in (9, 2))
    want = [part[source // 7, :, source % 7].clone() for part in pages]
    arena.keep([(segments[0], 2, np.array([7], np.int32))])
    assert all(torch.equal(part[target // 7, :, target % 7], w) for part, w in zip(pages, want, strict=True))


@pytest.mark.slow
def test_the_triton_forms_are_equal_under_their_interpreter():
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_trees.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "equal", done.stderr


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specdec_nn.ops.compact import triton as compact_triton
from specdec_nn.ops.ancestor_bits import triton as trees_triton
bits = dict(parents="*i32", first_nodes="*i32", bits="*i64", words="i32", WORDS="constexpr", SIZE="constexpr")
moves = dict(table="*i64", moves="*i64", count="i32", page_size="i32", UNIT="constexpr", MOVES="constexpr",
             SIZE="constexpr")
for kernel, kinds, constants in ((trees_triton._walk, bits, dict(WORDS=8, SIZE=trees_triton.ROWS)),
                                 (compact_triton._compact, moves, dict(UNIT=2, MOVES=compact_triton.MOVES, SIZE=64))):
    source = ASTSource(kernel, kinds, constexprs=constants)
    print(triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"])
"""


@pytest.mark.slow
def test_the_triton_forms_compile_for_a_gpu(tmp_path):
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    if done.returncode and "ptxas" in done.stderr:
        pytest.skip("this Triton comes without an assembler for CUDA")
    walk, compact = done.stdout.split(".entry ")[1:]
    assert "ld.global" in walk, done.stderr
    # Rows are read, all threads meet, and only then are they written.
    assert "bar.sync" in compact[compact.rindex("ld.global.b16") : compact.index("st.global.b16")]
