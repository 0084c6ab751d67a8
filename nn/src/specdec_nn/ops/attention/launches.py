"""How the attention of a step is laid out over a GPU: shapes of blocks, splits over keys; numbers only, no kernel.

Everything follows from sizes that are the same for all steps that share a captured graph, and nothing from the data of
a step. With `Sizes.exact`, what belongs to one row does not even follow from how many rows and segments there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specdec_nn.ops.attention.device_tables import SHORT, Sizes

LEAST: Final = 16  # rows, columns and depth of a product on tensor cores
WIDEST: Final = 256  # elements of a key or value
BLOCK: Final = 128  # most queries of a block: rows times the heads of one kv head
SHORT_BLOCK: Final = 64  # the same for decode rows
FLIGHT_BYTES: Final = 64 * 1024  # of keys and values on their way at once, so that two blocks share a processor
SPARE_BYTES: Final = 40 * 1024  # of shared memory for everything else
LEAST_TILES: Final = 2  # tiles of keys in a split
MOST_SPLITS: Final = 64
GROUP: Final = 16  # splits that are joined at once
EXACT_CHUNK: Final = 512  # keys of a split where a row may not depend on others
UNLIMITED: Final = 1 << 30


@dataclass(frozen=True)
class Geometry:
    """One layer: query heads, kv heads, width of a key and of a value, bytes of an element."""

    heads: int
    kv_heads: int
    dims: int
    width: int
    size: int

    @property
    def group(self) -> int:
        """Query heads of one kv head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Gpu:
    """What a layout depends on: processors, and bytes of shared memory that a block can have."""

    processors: int = 132
    shared: int = 227 * 1024


@dataclass(frozen=True)
class Tile:
    """Constants of a kernel: queries and keys of a block, warps, and tiles of keys on their way at once."""

    block: int
    keys: int
    warps: int
    buffers: int

    @property
    def stages(self) -> int:
        """What Triton calls `num_stages`: a tile waits for its page numbers, so that each buffer takes two."""
        return 2 * self.buffers + 1


@dataclass(frozen=True)
class Launch:
    """One launch of the kernel, for all segments of least .. most rows.

    rows     rows of a block
    blocks   blocks of rows a segment
    splits   parts of the keys that a block is cut into
    chunk    keys of a split, counted from key 0; 0 = each block's keys are cut evenly
    """

    tile: Tile
    least: int
    most: int
    rows: int
    blocks: int
    splits: int
    chunk: int

    @property
    def joined(self) -> bool:
        """Whether parts are joined by another kernel: always for fixed chunks, so that one has the bits of several."""
        return self.splits > 1 or self.chunk > 0


def power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def halves(dims: int) -> tuple[int, int]:
    """Return the powers of two that keys of a width are loaded in: one, or two where that wastes less.

    192 is (128, 64), 96 (64, 32), 128 (128, 0), 5 (16, 0).
    """
    whole = max(power_of_2(dims), LEAST)
    first = whole // 2
    second = max(power_of_2(dims - first), LEAST)
    return (first, second) if first >= LEAST and first + second < whole else (whole, 0)


def largest_block(layer: Geometry) -> int:
    """Return how many queries a block may have at most: the sums of all stay in registers."""
    if layer.size > 2:
        return 32  # products of float32 are no matter of tensor cores
    return BLOCK // 2 if layer.width > 128 or layer.dims > 192 else BLOCK


def tile_of(layer: Geometry, queries: int, most: int, gpu: Gpu) -> Tile:
    """Return the tile for blocks of up to so many queries."""
    block = max(min(power_of_2(queries), most, largest_block(layer)), power_of_2(layer.group), LEAST)
    column = (sum(halves(layer.dims)) + max(power_of_2(layer.width), LEAST)) * layer.size  # bytes of a key and value
    keys = 64 if column <= 512 else 32 if column <= 1024 else 16
    buffers = min(FLIGHT_BYTES, gpu.shared - SPARE_BYTES) // (keys * column)
    wide = block > 64 or (block == 64 and max(layer.dims, layer.width) > 192)
    return Tile(block, keys, 8 if wide else 4, max(1, min(buffers, 3)))


def launches_of(sizes: Sizes, layer: Geometry, gpu: Gpu) -> tuple[Launch, ...]:
    """Return the launches for a step of some sizes; none for no rows."""
    if sizes.exact:
        return (_exact(sizes, layer, gpu),) if max(sizes.short, sizes.long) else ()
    found = []
    if sizes.short:
        tile = tile_of(layer, sizes.short * layer.group, SHORT_BLOCK, gpu)
        found.append(_launch(sizes, layer, gpu, tile, (1, SHORT, sizes.short)))
    if sizes.long:
        tile = tile_of(layer, sizes.long * layer.group, BLOCK, gpu)
        found.append(_launch(sizes, layer, gpu, tile, (SHORT + 1, UNLIMITED, sizes.long)))
    return tuple(found)


def _launch(sizes: Sizes, layer: Geometry, gpu: Gpu, tile: Tile, limits: tuple[int, int, int]) -> Launch:
    """Return a launch for segments of limits[0] .. limits[1] rows, of which the longest has limits[2]."""
    least, most, longest = limits
    rows = tile.block // layer.group
    blocks = -(-longest // rows)
    programs = sizes.segments * blocks * layer.kv_heads
    # Small blocks wait for memory, so that two of them share a processor; large ones write more to be joined.
    wanted = -(-gpu.processors * (2 if tile.block <= 32 else 1) // programs)
    splits = min(wanted, MOST_SPLITS, -(-sizes.keys // (LEAST_TILES * tile.keys)))
    return Launch(tile, least, most, rows, blocks, max(splits, 1), 0)


def _exact(sizes: Sizes, layer: Geometry, gpu: Gpu) -> Launch:
    """Return the launch that gives a row the same bits in any company: smallest blocks, chunks of fixed size.

    With trees a block has one row, whose keys are then taken in the order of its path, as those of a chain are.
    """
    tile = tile_of(layer, LEAST, LEAST, gpu)
    rows = 1 if sizes.words else tile.block // layer.group
    blocks = -(-max(sizes.short, sizes.long) // rows)
    return Launch(tile, 1, UNLIMITED, rows, blocks, max(-(-sizes.keys // EXACT_CHUNK), 1), EXACT_CHUNK)
