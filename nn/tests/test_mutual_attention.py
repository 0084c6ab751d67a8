"""Rows of a mutual segment attend to each other in both directions, and to what comes before them like any row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference, write_pages

attention = pytest.importorskip("specdec_nn.ops.attention.numba").attention

OPS = {"reference": attention_reference, "numba": attention}
HEADS, KV_HEADS, DIMS, WIDTH, PAGE = 6, 2, 32, 48, 16
# (rows, context, mutual): within a tile, across tiles and chunks, alone, more rows than a task takes, a chain
SEGMENTS = ((5, 3, True), (16, 60, True), (1, 0, True), (9, 250, True), (4, 70, False), (90, 40, True), (3, 600, True))


def batch(segments, seed=0, dtype=torch.float32):
    """Return q, k, v, pages and tables of a batch whose contexts hold random keys."""
    rng, g = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g).to(dtype)  # noqa: E731
    rows = np.array([s[0] for s in segments], np.int32)
    context = np.array([s[1] for s in segments], np.int32)
    pages = -(-(rows + context) // PAGE)
    order = rng.permutation(int(pages.sum())).astype(np.int32)
    table = np.full((len(rows), pages.max()), -1, np.int32)
    slots = []
    for s, count in enumerate(pages):
        table[s, :count], order = order[:count], order[count:]
        keys = np.arange(context[s], context[s] + rows[s])
        slots.append(table[s, keys // PAGE] * PAGE + keys % PAGE)
    mutual = np.array([s[2] for s in segments])
    start = (np.cumsum(rows) - rows).astype(np.int32)
    step = AttentionStep(np.concatenate(slots), start, rows, context, rows < 0, table, PAGE, seg_mutual=mutual)
    n = int(rows.sum())
    shape = int(pages.sum()), KV_HEADS, PAGE
    return draw(n, HEADS, DIMS), draw(n, KV_HEADS, DIMS), draw(n, KV_HEADS, WIDTH), draw(*shape, DIMS), draw(
        *shape, WIDTH
    ), step  # fmt: skip


def by_hand(q, k_pages, v_pages, step, segments, s, r, window, sinks, scaling, softcap):
    """Return the row's output in float64, from a loop over the keys that the words of the op's definition give it."""
    rows, context, mutual = segments[s]
    own = context + r
    seen = [
        key
        for key in range(context + rows if mutual else own + 1)
        if window is None or abs(key - own) < window
    ]  # fmt: skip
    at = [(int(step.page_table[s, key // PAGE]), key % PAGE) for key in seen]
    flat = int(step.seg_start[s]) + r
    out = []
    for h in range(HEADS):
        g = h // (HEADS // KV_HEADS)
        scores = torch.stack([q[flat, h].double() @ k_pages[p, g, o].double() for p, o in at]) * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat([scores, sinks[h : h + 1].double()])
        weights = torch.softmax(scores, dim=0)[: len(at)]
        out.append(weights @ torch.stack([v_pages[p, g, o] for p, o in at]).double())
    return torch.stack(out)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("window", [None, 1, 7, 64, 300])
def test_rows_see_the_keys_around_them_within_the_window(op, window):
    q, k, v, k_pages, v_pages, step = batch(SEGMENTS)
    sinks, softcap = (torch.linspace(-2, 3, HEADS), 20.0) if window == 7 else (None, None)
    out = op(q, k, v, k_pages, v_pages, step, scaling=0.3, window=window, sinks=sinks, softcap=softcap)
    rng = np.random.default_rng(1)
    for s, (rows, _, _) in enumerate(SEGMENTS):
        for r in {0, rows - 1, *rng.integers(0, rows, 5).tolist()}:
            wanted = by_hand(q, k_pages, v_pages, step, SEGMENTS, s, r, window, sinks, 0.3, softcap)
            got = out[int(step.seg_start[s]) + r].double()
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_segment_is_the_same_alone_and_beside_others(op, dtype):
    """Of a whole batch one segment is taken out, with its own pages, and run again."""
    q, k, v, k_pages, v_pages, step = batch(SEGMENTS, dtype=dtype)
    for window in (None, 33):
        out = op(q, k, v, k_pages, v_pages, step, scaling=0.3, window=window)
        for s, (rows, _, _) in enumerate(SEGMENTS):
            span = slice(int(step.seg_start[s]), int(step.seg_start[s]) + rows)
            one = AttentionStep(
                step.slots[span], step.seg_start[:1], step.seg_rows[s : s + 1], step.seg_context[s : s + 1],
                step.seg_prompt[:1], step.page_table[s : s + 1], PAGE, seg_mutual=step.seg_mutual[s : s + 1],
            )  # fmt: skip
            alone = op(q[span], k[span], v[span], k_pages, v_pages, one, scaling=0.3, window=window)
            assert torch.equal(out[span], alone)


def test_the_cache_gives_mutual_rows_and_rows_without_queries():
    """Rows that are only written are seen later; the rows of a round are dropped again."""
    cache = DraftCache(KVArena(256, torch.device("cpu")))
    g = torch.Generator().manual_seed(0)
    draw = lambda n, heads: torch.randn(n, heads, DIMS, generator=g)  # noqa: E731
    for name in ("a", "b"):
        cache.open(name)
    k, v = draw(7, KV_HEADS), draw(7, KV_HEADS)
    step = cache.append(["a", "b"], [3, 4], [3, 4])
    pages = cache.arena.layer(0, k, v)
    write_pages(k, v, *pages, step)
    for _ in range(2):
        cache.rewind(["b"])
        q, k_round, v_round = draw(5, HEADS), draw(5, KV_HEADS), draw(5, KV_HEADS)
        step = cache.append(["b"], [5], mutual=True)
        assert step.seg_context.tolist() == [4]
        out = attention_reference(q, k_round, v_round, *pages, step, scaling=0.3)
        keys, values = torch.cat([k[3:], k_round]), torch.cat([v[3:], v_round])
        scores = torch.einsum("rhd,khd->rhk", q, keys.repeat_interleave(HEADS // KV_HEADS, 1)) * 0.3
        mixed = torch.einsum("rhk,khd->rhd", scores.softmax(-1), values.repeat_interleave(HEADS // KV_HEADS, 1))
        torch.testing.assert_close(out, mixed, atol=1e-5, rtol=1e-5)
