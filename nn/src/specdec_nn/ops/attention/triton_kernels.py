"""The Triton kernels of attention: a running softmax over pages; they know tables and addresses, and no tensors.

A program takes a block of queries, rows of one segment times the query heads of one kv head, through a part of the keys
that they see, tile by tile (FlashAttention-2, arXiv 2307.08691, section 3.1). Where blocks are few, the keys are split
between programs, and a second kernel joins the parts (Flash-Decoding). Grids follow from `Sizes` alone, and a program
whose block, segment or part is not there ends at once.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN202
from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from specdec_nn.ops.attention.device_tables import BLANK, FIELDS, MUTUAL
from specdec_nn.ops.attention.launches import GROUP, LEAST_TILES
from specdec_nn.ops.attention.triton_bits import node_of, ones, within
from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.triton_cache import check_cache

check_cache()

HEADER: Final = 4  # float32 before the sums of a partial result: largest score, total, and two that are not used
VARYING: Final = ["table_width", "words", "blocks", "splits", "chunk", "least", "most", "window"]  # from step to step

_FIELDS, _MUTUAL, _BLANK = tl.constexpr(FIELDS), tl.constexpr(MUTUAL), tl.constexpr(BLANK)
_GROUP, _LEAST_TILES, _HEADER = tl.constexpr(GROUP), tl.constexpr(LEAST_TILES), tl.constexpr(HEADER)
_NEVER, _LOG2E = tl.constexpr(float("-inf")), tl.constexpr(LOG2E)  # scores are kept in powers of two
_ZEROED = tl.constexpr(1024)  # elements of a padding row that are cleared at once


@triton.jit
def _load(places, inside, first: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr):
    """Return [N, SIZE] elements, from `first` on, of the keys at some places [N]; zeros where there are none."""
    column = first + tl.arange(0, SIZE)
    if MASKED:
        found = tl.load(
            places[:, None] + column[None, :], mask=inside[:, None] & (column < COLUMNS)[None, :], other=0.0
        )
    elif first + SIZE <= COLUMNS:
        found = tl.load(places[:, None] + column[None, :])
    else:
        found = tl.load(places[:, None] + column[None, :], mask=(column < COLUMNS)[None, :], other=0.0)
    return found


@triton.jit
def _stretch(
    acc, top, total, low, high, q0, q1, k_pages, v_pages, table, k_page, k_key, v_page, v_key, first, end, floor, last,
    tree, row_bits, alive, words, window, scale, cap,
    DIMS: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr, PAGE: tl.constexpr,
    N: tl.constexpr, MASKED: tl.constexpr, WINDOWED: tl.constexpr, TREES: tl.constexpr, NARROW: tl.constexpr,
    PATHS: tl.constexpr, CAPPED: tl.constexpr, WIDEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take the tiles of keys low .. high - 1 into the sums [M, W], the largest scores [M] and the totals [M]."""
    for start in tl.range(low, high, N, num_stages=STAGES):
        key = start + tl.arange(0, N)
        inside = (key >= first) & (key < end)
        at = key
        if PATHS:
            at = tl.where(key >= tree, tree + node_of(row_bits, words, key - tree), key)
        if MASKED:
            page = tl.load(table + at // PAGE, mask=inside, other=0).to(tl.int64)
        else:
            page = tl.load(table + at // PAGE).to(tl.int64)
        k_places = k_pages + page * k_page + (at % PAGE) * k_key
        v_places = v_pages + page * v_page + (at % PAGE) * v_key
        k = _load(k_places, inside, 0, DIMS, D0, MASKED)
        if WIDEN:
            k = k.to(tl.float32)
        score = tl.dot(q0, tl.trans(k), input_precision="ieee")
        if D1 > 0:
            k = _load(k_places, inside, D0, DIMS, D1, MASKED)
            if WIDEN:
                k = k.to(tl.float32)
            score = tl.dot(q1, tl.trans(k), score, input_precision="ieee")
        score = score * scale
        if CAPPED:
            score = cap * (1.0 - 2.0 / (1.0 + tl.exp2(score)))  # cap * tanh
        v = _load(v_places, inside, 0, WIDTH, W, MASKED)
        if MASKED:
            seen = inside[None, :] & (key[None, :] <= last[:, None])
            if WINDOWED:
                seen = seen & (key[None, :] >= floor[:, None])
            if TREES and not PATHS:
                b = key - tree
                node = (b >= 0) & (b < words * 32) & inside
                bit = tl.zeros((row_bits.shape[0], N), tl.int32)
                for n in tl.static_range((N + 31) // 32 + 1):
                    number = ((start - tree) >> 5) + n  # of a word that the tile may have nodes of
                    word = tl.load(row_bits + tl.minimum(tl.maximum(number, 0), words - 1), mask=alive, other=0)
                    own = node & ((b >> 5) == number)
                    bit += tl.where(own[None, :], (word[:, None] >> (b & 31)[None, :]) & 1, 0)
                branch = bit != 0
                if NARROW:
                    branch = branch & within(row_bits, alive, words, b, window)
                seen = seen | branch
            score = tl.where(seen, score, _NEVER)
        new = tl.maximum(top, tl.max(score, 1))
        safe = tl.where(new == _NEVER, 0.0, new)
        weight = tl.exp2(score - safe[:, None])
        if MASKED:
            # Nothing times NaN is NaN: what is no number counts for the rows that see it, and for no other.
            finite = tl.abs(v.to(tl.float32)) < float("inf")
            broken = tl.max(tl.where(finite, 0, 1), 1) > 0
            v = tl.where(finite, v, 0.0).to(v.dtype)
            weight = tl.where(seen & broken[None, :], float("nan"), weight)
        keep = tl.exp2(top - safe)
        total = total * keep + tl.sum(weight, 1)
        acc = acc * keep[:, None]
        weight = weight.to(v.dtype)
        if WIDEN:
            acc = tl.dot(weight.to(tl.float32), v.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(weight, v, acc, input_precision="ieee")
        top = new
    return acc, top, total


@triton.jit
def _queries(
    segments, bits, words, segment, block, least, most, window,
    GROUP: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, WINDOWED: tl.constexpr, TREES: tl.constexpr,
    PATHS: tl.constexpr,
):  # fmt: skip
    """Return a block: rows that it has (0: there is no such block), its first flat row, that row's key, the end of the
    keys that it sees, where its tree begins or its kind, and the positions of its queries [M], with a window only.

    With PATHS the keys of a row are numbered as on its path, so that its own key is at its position.
    """
    record = segments + segment * _FIELDS
    start, count = tl.load(record), tl.load(record + 1)
    context, kind = tl.load(record + 2), tl.load(record + 3)
    before = block * ROWS
    rows = tl.minimum(count - before, ROWS)
    rows = tl.where((count < least) | (count > most), 0, tl.maximum(rows, 0))
    own = context + before
    r = tl.arange(0, M) // GROUP
    row_bits = bits + (start + before + r).to(tl.int64) * words
    if PATHS:
        depth = rows * 0 - 1
        for n in range(0, words):
            word = tl.load(bits + (start + before).to(tl.int64) * words + n, mask=(rows > 0) & (kind >= 0), other=0)
            depth += ones(word)
        own = tl.where(kind >= 0, kind + depth, own)
    end = tl.where(kind == _MUTUAL, context + count, own + rows)
    position = own + r
    if WINDOWED and TREES and not PATHS:
        depths, nodes = r * 0 - 1, tl.where(kind >= 0, rows, 0)
        for n in range(0, words):
            depths += ones(tl.load(row_bits + n, mask=r < nodes, other=0))
        position = tl.where(kind >= 0, kind + depths, position)
    return rows, start + before, own, end, kind, position


@triton.jit
def _cut(first, end, splits, chunk, N: tl.constexpr, EXACT: tl.constexpr):
    """Return where the first part of keys first .. end - 1 begins, and how many keys a part has."""
    if EXACT:
        base = first // (chunk * _GROUP) * (chunk * _GROUP)
        size = chunk
    else:
        base = first // N * N
        size = tl.maximum(tl.cdiv(tl.cdiv(end - base, N), splits), _LEAST_TILES) * N
    return base, size


@triton.jit
def _finish(acc, top, total, sink, SINKS: tl.constexpr):
    """Return sums over totals, with a sink as one more logit of each query in the total alone."""
    if SINKS:
        high = tl.maximum(top, sink)
        keep = tl.exp2(top - high)
        total = total * keep + tl.exp2(sink - high)
        acc = acc * keep[:, None]
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=VARYING)
def _attend(
    q, k_pages, v_pages, out, partials, sinks, bits, segments, pages, q_row, q_head, k_page, k_head, k_key, v_page,
    v_head, v_key, out_row, table_width, words, blocks, splits, chunk, least, most, window, scale, cap,
    GROUP: tl.constexpr, DIMS: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr,
    PAGE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WINDOWED: tl.constexpr, TREES: tl.constexpr,
    NARROW: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr, SPLIT: tl.constexpr, EXACT: tl.constexpr,
    PATHS: tl.constexpr, ROWS: tl.constexpr, WIDEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One block of queries on one part of its keys: write the output, or a partial result if keys are split."""
    place, head = tl.program_id(0), tl.program_id(1)
    block, split, segment = place % blocks, place // blocks % splits, place // blocks // splits
    rows, flat, own, end, kind, position = _queries(
        segments, bits, words, segment, block, least, most, window, GROUP, M, ROWS, WINDOWED, TREES, PATHS
    )
    if rows == 0:
        return
    lane = tl.arange(0, M)
    r, h = lane // GROUP, head * GROUP + lane % GROUP
    alive = r < rows
    first, whole = 0, 0
    floor = position
    mutual = kind == _MUTUAL
    if WINDOWED:
        floor = position - window + 1
        first = tl.maximum(tl.min(tl.where(alive, floor, 0x7FFFFFFF), 0), 0)
        whole = tl.cdiv(tl.maximum(tl.max(tl.where(alive, floor, 0), 0), 0), N) * N
        last = tl.where(mutual, tl.minimum(own + r + window, end) - 1, own + r)
        shared = tl.where(mutual, tl.minimum(own + window, end), own + 1)
    else:
        last = tl.where(mutual, end - 1, own + r)
        shared = tl.where(mutual, end, own + 1)
    tree = end
    if TREES:
        tree = tl.where(kind >= 0, kind, end)
    if TREES and not PATHS:
        last = tl.where(kind >= 0, kind - 1, last)
        shared = tl.where(kind >= 0, kind, shared)
    base, size = _cut(first, end, splits, chunk, N, EXACT)
    low = base + split * size
    if low >= end:
        return
    high = tl.minimum(low + size, end)
    low = tl.maximum(low, first // N * N)

    row = (flat + r).to(tl.int64)
    q_places = q + row * q_row + h * q_head
    q0 = _load(q_places, alive, 0, DIMS, D0, True)
    q1 = q0
    if D1 > 0:
        q1 = _load(q_places, alive, D0, DIMS, D1, True)
    if WIDEN:
        q0, q1 = q0.to(tl.float32), q1.to(tl.float32)
    k_pages += head * k_head
    v_pages += head * v_head
    table = pages + segment.to(tl.int64) * table_width
    row_bits = bits + row * words
    if PATHS:
        row_bits = bits + flat.to(tl.int64) * words
    acc = tl.zeros((M, W), tl.float32)
    top = tl.full((M,), _NEVER, tl.float32)
    total = tl.zeros((M,), tl.float32)
    edge = low
    if not EXACT:
        # Tiles that all rows see whole: from the last row's first key to the first row's last one.
        edge = tl.minimum(tl.maximum(whole, low), high)
        if WINDOWED:
            acc, top, total = _stretch(
                acc, top, total, low, edge, q0, q1, k_pages, v_pages, table, k_page, k_key, v_page, v_key, first, end,
                floor, last, tree, row_bits, alive, words, window, scale, cap,
                DIMS, D0, D1, WIDTH, W, PAGE, N, True, WINDOWED, TREES, NARROW, PATHS, CAPPED, WIDEN, 1,
            )  # fmt: skip
        begin = edge
        edge = tl.minimum(tl.maximum(shared // N * N, begin), high)
        acc, top, total = _stretch(
            acc, top, total, begin, edge, q0, q1, k_pages, v_pages, table, k_page, k_key, v_page, v_key, first, end,
            floor, last, tree, row_bits, alive, words, window, scale, cap,
            DIMS, D0, D1, WIDTH, W, PAGE, N, False, WINDOWED, TREES, NARROW, PATHS, CAPPED, WIDEN, STAGES,
        )  # fmt: skip
    if PATHS:
        # Tiles before the tree are taken as a chain's are; those of the tree then look up their keys.
        edge = tl.minimum(tl.maximum(tree // N * N, low), high)
        acc, top, total = _stretch(
            acc, top, total, low, edge, q0, q1, k_pages, v_pages, table, k_page, k_key, v_page, v_key, first, end,
            floor, last, tree, row_bits, alive, words, window, scale, cap,
            DIMS, D0, D1, WIDTH, W, PAGE, N, True, WINDOWED, False, False, False, CAPPED, WIDEN, STAGES,
        )  # fmt: skip
    acc, top, total = _stretch(
        acc, top, total, edge, high, q0, q1, k_pages, v_pages, table, k_page, k_key, v_page, v_key, first, end,
        floor, last, tree, row_bits, alive, words, window, scale, cap,
        DIMS, D0, D1, WIDTH, W, PAGE, N, True, WINDOWED, TREES, NARROW, PATHS, CAPPED, WIDEN, STAGES if EXACT else 1,
    )  # fmt: skip

    column = tl.arange(0, W)
    mask = alive[:, None] & (column < WIDTH)[None, :]
    if SPLIT:
        number = (place.to(tl.int64) * tl.num_programs(1) + head) * M + lane
        record = partials + number * (WIDTH + _HEADER)
        tl.store(record, top, mask=alive)
        tl.store(record + 1, total, mask=alive)
        tl.store(record[:, None] + _HEADER + column[None, :], acc, mask=mask)
    else:
        sink = top
        if SINKS:
            sink = tl.load(sinks + h, mask=alive, other=0.0).to(tl.float32) * _LOG2E
        acc = _finish(acc, top, total, sink, SINKS)
        tl.store((out + row * out_row + h * WIDTH)[:, None] + column[None, :], acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=VARYING)
def _join(
    out, partials, sinks, bits, segments, out_row, words, blocks, splits, chunk, least, most, window,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    WINDOWED: tl.constexpr, TREES: tl.constexpr, SINKS: tl.constexpr, EXACT: tl.constexpr, PATHS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Join the parts of one query in order, _GROUP at once, and write the output."""
    place, head = tl.program_id(0), tl.program_id(1)
    m, block, segment = place % M, place // M % blocks, place // M // blocks
    rows, flat, _, end, _, position = _queries(
        segments, bits, words, segment, block, least, most, window, GROUP, M, ROWS, WINDOWED, TREES, PATHS
    )
    if m // GROUP >= rows:
        return
    first = 0
    if WINDOWED:
        alive = tl.arange(0, M) // GROUP < rows
        first = tl.maximum(tl.min(tl.where(alive, position - window + 1, 0x7FFFFFFF), 0), 0)
    base, size = _cut(first, end, splits, chunk, N, EXACT)
    parts = tl.cdiv(end - base, size)
    column = tl.arange(0, W)
    acc = tl.zeros((1, W), tl.float32)
    top = tl.full((1,), _NEVER, tl.float32)
    total = tl.zeros((1,), tl.float32)
    for n in range(0, parts, _GROUP):
        part = n + tl.arange(0, _GROUP)
        there = part < parts
        number = ((segment * splits + part) * blocks + block).to(tl.int64) * tl.num_programs(1) + head
        record = partials + (number * M + m) * (WIDTH + _HEADER)
        tops = tl.load(record, mask=there, other=_NEVER)
        totals = tl.load(record + 1, mask=there, other=0.0)
        mask = there[:, None] & (column < WIDTH)[None, :]
        sums = tl.load(record[:, None] + _HEADER + column[None, :], mask=mask, other=0.0)
        new = tl.maximum(top, tl.max(tops, 0))
        safe = tl.where(new == _NEVER, 0.0, new)
        keep = tl.exp2(top - safe)
        weight = tl.exp2(tops - tl.max(safe, 0))
        total = total * keep + tl.sum(totals * weight, 0)
        acc = acc * keep[:, None] + tl.sum(sums * weight[:, None], 0)[None, :]
        top = new
    h = head * GROUP + m % GROUP
    sink = top
    if SINKS:
        sink = top * 0.0 + tl.load(sinks + h).to(tl.float32) * _LOG2E
    acc = _finish(acc, top, total, sink, SINKS)
    row = (flat + m // GROUP).to(tl.int64)
    out_places = out + row * out_row + h * WIDTH + column
    tl.store(out_places[None, :], acc.to(out.dtype.element_ty), mask=(column < WIDTH)[None, :])


@triton.jit
def _write(
    k, v, k_pages, v_pages, out, slots, k_row, k_from, v_row, v_from, k_page, k_head, k_key, v_page, v_head, v_key,
    kv_heads, out_row, DIMS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr, PAGE: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """Copy keys and values of some heads of a row into its slot; a row that is padding comes out as zeros."""
    row, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    slot = tl.load(slots + row)
    if slot == _BLANK:
        for begin in range(0, out_row, _ZEROED):
            at = begin + tl.arange(0, _ZEROED)
            tl.store(out + row * out_row + at, tl.zeros((_ZEROED,), out.dtype.element_ty), mask=at < out_row)
    if slot >= 0:
        page, offset = (slot // PAGE).to(tl.int64), slot % PAGE
        there = (h < kv_heads)[:, None]
        d, w = tl.arange(0, D)[None, :], tl.arange(0, W)[None, :]
        own = tl.load((k + row * k_row + h * k_from)[:, None] + d, mask=there & (d < DIMS))
        tl.store((k_pages + page * k_page + offset * k_key + h * k_head)[:, None] + d, own, mask=there & (d < DIMS))
        own = tl.load((v + row * v_row + h * v_from)[:, None] + w, mask=there & (w < WIDTH))
        tl.store((v_pages + page * v_page + offset * v_key + h * v_head)[:, None] + w, own, mask=there & (w < WIDTH))
