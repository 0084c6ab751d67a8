"""Checks of attention in Triton, run by test_triton_attention in a process of its own; on a CPU, interpreted.

The cases are those of the CPU's tests. Every page, and every slot of a page, that a request does not own or that is out
of its window holds NaN or infinity, so that a kernel which reads one shows it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec_nn.ops.attention import launches
from specdec_nn.ops.attention import triton as attention_triton
from specdec_nn.ops.attention.device_tables import DeviceTables, Sizes
from specdec_nn.ops.attention.reference import AttentionStep

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# What poison gives is masked afterwards, and the interpreter computes it with numpy.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
POISON = float("nan"), float("inf"), -float("inf")


def sibling(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROWS, TREES, MUTUAL = sibling("test_attention"), sibling("test_tree_attention"), sibling("test_mutual_attention")


def there(x):
    return x if x is None else x.to(DEVICE)


READ = set()  # flat slots of the pages that the last call has read; filled by the interpreter alone


@contextlib.contextmanager
def watched(*pages):
    """Write down which slots of some pages are read."""
    READ.clear()
    if not attention_triton.INTERPRETED:
        yield
        return
    from triton.runtime.interpreter import interpreter_builder as builder

    load = builder.create_masked_load

    def create_masked_load(places, mask, *rest, **options):
        asked = places.data[np.broadcast_to(mask.data, places.data.shape).astype(bool)].astype(np.int64)
        for part in pages:
            _, heads, size, width = part.shape
            at = (asked - part.data_ptr()) // part.element_size()
            at = at[(at >= 0) & (at < part.numel())]
            READ.update(np.unique(at // (heads * size * width) * size + at // width % size).tolist())
        return load(places, mask, *rest, **options)

    builder.create_masked_load = create_masked_load
    try:
        yield
    finally:
        del builder.create_masked_load


def attention(q, k, v, k_pages, v_pages, step, sinks=None, **options):
    """The op on the device, with pages that are written in place."""
    step = dataclasses.replace(step)  # without plans
    pages = there(k_pages), there(v_pages)
    with watched(*pages):
        out = attention_triton.attention(there(q), there(k), there(v), *pages, step, sinks=there(sinks), **options)
    for old, new in zip((k_pages, v_pages), pages, strict=True):
        if old is not new:
            old.copy_(new)
    return out.cpu()


def exactly(q, k, v, k_pages, v_pages, step, **options):
    """The op as for a fixed width, where no row may depend on others."""
    step = dataclasses.replace(step, fixed_width=True, seg_prompt=np.zeros_like(step.seg_prompt))
    return attention(q, k, v, k_pages, v_pages, step, **options)


def poisoned(pages, wanted, page_size):
    """Pages with what is wanted, flat slots, and poison everywhere else."""
    g = torch.Generator().manual_seed(3)
    poison = torch.tensor(POISON, dtype=pages.dtype)[torch.randint(3, pages.shape, generator=g)]
    slots = torch.tensor(sorted(wanted), dtype=torch.int64)
    at = slots // page_size, slice(None), slots % page_size
    poison[at] = pages[at]
    return poison


def close(got, exact, dtype):
    """Weights are rounded to the dtype of the values; a row's sum of rounding errors is bounded by its values'."""
    assert got.dtype is dtype and got.shape == exact.shape
    slack = 1e-5 if dtype is torch.float32 else 4 * UNIT[dtype]
    assert ((got.double() - exact).abs() <= 2 * UNIT[dtype] * exact.abs() + slack).all(), (
        (got.double() - exact).abs().max()
    )


def run_rows(case, op=attention):
    """A case of test_attention with all else poisoned, whole pages before a window pointing to another's."""
    exact = ROWS.oracle(case)
    wanted, table = set(), case.step.page_table.copy()
    for s, (_, context, _) in enumerate(case.segments):
        seen = range(min(case.seen(s, 0), default=0), context)
        wanted |= {int(case.home[s][p][0]) * case.page_size + case.home[s][p][1] for p in seen}
        table[s, : case.seen(s, 0)[0] // case.page_size] = max(case.k_pages.shape[0] - 1, 0)
    case.step = dataclasses.replace(case.step, page_table=table)
    case.k_pages, case.v_pages = (poisoned(p, wanted, case.page_size) for p in (case.k_pages, case.v_pages))
    got = case.run(op)[0]
    owned = wanted | set(case.step.slots.tolist())
    assert READ <= owned, f"slots {sorted(READ - owned)} are read and not owned"
    assert owned - {-1} <= READ or not attention_triton.INTERPRETED
    return got, exact


# Cases of test_attention by dtype; what takes the interpreter long and shows nothing new is left out.
SOME = {
    torch.float32: "prompts and decode, padding, window, window of one, window past a chunk, everything, odd sizes, "
    "five heads a group, one kv head, narrow values, pages of one, large pages",
    torch.bfloat16: "everything, wide",
    torch.float16: "sinks, odd sizes",
}
ALL = [(name, dtype) for dtype, names in SOME.items() for name in names.split(", ")]
# Fewer segments for some: at, before and after the edge of a tile, of a block, and of two tiles that are seen whole.
FEW = (1, 0, False), (3, 70, False), (1, 63, False), (2, 126, False)
FEW_MIXED = (1, 0, False), (36, 0, True), (5, 90, False), (20, 25, True), (3, 130, False), (1, 15, False)
SEGMENTS = dict.fromkeys(("window of one", "five heads a group", "one kv head", "narrow values", "pages of one"), FEW)
SEGMENTS |= dict.fromkeys(("everything", "window", "sinks"), FEW_MIXED)
# Those whose keys are cut into parts. A program of the kernel that joins them has one query, so that it takes the
# interpreter most of the time; pages, and which keys are masked, are nothing to it.
CUT = "prompts and decode, window past a chunk, everything, odd sizes, five heads a group, narrow values, sinks".split(
    ", "
)


@pytest.fixture
def uncut(monkeypatch):
    """Return a function that has keys of one segment taken by one program."""

    def no_parts():
        if attention_triton.INTERPRETED:
            monkeypatch.setattr(attention_triton, "gpu_of", lambda _: launches.Gpu(processors=1))

    return no_parts


@pytest.mark.parametrize(("name", "dtype"), ALL)
def test_ragged_rows_give_what_the_definition_gives_in_float64(name, dtype, uncut):
    if name not in CUT:
        uncut()
    options = {"segments": SEGMENTS[name]} if name in SEGMENTS else {}
    got, exact = run_rows(ROWS.Case(**{**ROWS.CASES[name], **options}, dtype=dtype))
    close(got, exact, dtype)


@pytest.mark.parametrize("seed", range(3))
def test_random_ragged_batches_of_wide_heads(seed):
    rng = np.random.default_rng(seed)
    segments = [(int(rng.integers(1, 40 if p else 6)), int(rng.integers(0, 90)), p) for p in (True, False, False)]
    case = ROWS.Case(
        segments=tuple(segments), heads=4, kv_heads=2, dims=(256, 72, 96)[seed], width=(256, 80, 96)[seed],
        window=(None, 50, 7)[seed], scaling=0.1, seed=seed, dtype=(torch.bfloat16, torch.float16, torch.float32)[seed],
    )  # fmt: skip
    got, exact = run_rows(case)
    close(got, exact, case.dtype)


def exact_trees(batch):
    """Attention of a batch of test_tree_attention in float64, a row at a time over the keys of its path."""
    _, k_pages, v_pages = batch.run(lambda q, k, v, kp, vp, step, **_: TREES.attention_reference.__globals__[
        "write_pages"](k, v, kp, vp, step))  # fmt: skip
    window, sinks = batch.arguments.get("window"), batch.arguments["sinks"]
    cap, group = batch.arguments.get("softcap"), batch.heads // batch.kv_heads
    out = torch.zeros(len(batch.q), batch.heads, batch.width, dtype=torch.float64)
    for s, segment in enumerate(batch.segments):
        for r in range(segment.rows):
            keys = np.array(segment.keys(r))[-(window or 1 << 30) :]
            slots = torch.from_numpy(batch.slots(s, keys).astype(np.int64))
            at = slots // batch.page_size, slice(None), slots % batch.page_size
            k, v = (pages[at].double().repeat_interleave(group, 1) for pages in (k_pages, v_pages))
            scores = torch.einsum("hd,nhd->hn", batch.q[batch.start[s] + r].double(), k) * batch.arguments["scaling"]
            if cap:
                scores = cap * torch.tanh(scores / cap)
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[:, None]], 1)
            weights = scores.softmax(1)[:, : len(keys)]
            out[batch.start[s] + r] = torch.einsum("hn,nhd->hd", weights, v)
    return out


def poison_trees(batch):
    """Poison what no row of a batch of trees may see; return the slots that it owns, unseen nodes among them."""
    window, wanted, owned = batch.arguments.get("window"), set(), set()
    for s, segment in enumerate(batch.segments):
        for r in range(segment.rows):
            keys = np.array(segment.keys(r))[-(window or 1 << 30) :]
            wanted |= set(batch.slots(s, keys).tolist())
            owned |= set(batch.slots(s, np.arange(keys[0], segment.context + segment.first + segment.rows)).tolist())
    batch.k_pages, batch.v_pages = (poisoned(p, wanted, batch.page_size) for p in (batch.k_pages, batch.v_pages))
    return owned


TREE_SOME = {
    torch.float32: "window inside the path, sinks, odd sizes, five heads a group",
    torch.bfloat16: "trees beside chains and prompts",
    torch.float16: "everything",
}
TREE_ALL = [(name, dtype) for dtype, names in TREE_SOME.items() for name in names.split(", ")]
# In place of the mixed segments of test_tree_attention: a chain, trees that begin within a tile and before its edge,
# and a prompt that takes several blocks.
TREE_MIXED = [TREES.Segment(90, rows=5), *TREES.trees(0, (70, 16, "any"), (60, 9, "wide")),
              TREES.Segment(25, rows=20, prompt=True), TREES.Segment(130, rows=1)]  # fmt: skip
TREE_CUT = "window inside the path", "odd sizes", "sinks"


@pytest.mark.parametrize(("name", "dtype"), TREE_ALL)
def test_trees_give_what_the_definition_gives_in_float64(name, dtype, uncut):
    if name not in TREE_CUT:
        uncut()
    options = dict(TREES.CASES[name])
    if options["segments"] is TREES.MIXED:
        options["segments"] = TREE_MIXED
    batch = TREES.Batch(**options, dtype=dtype)
    exact = exact_trees(batch)
    owned = poison_trees(batch)
    close(batch.run(attention)[0], exact, dtype)
    assert READ <= owned, f"slots {sorted(READ - owned)} are read and not owned"


def test_trees_of_several_words_and_later_parts_of_a_tree():
    (whole,) = TREES.trees(7, (20, 70, "deep"))
    parts = [TREES.Segment(40, whole.parents, first=first, rows=rows) for first, rows in ((0, 60), (60, 11))]
    for segments, window in (([whole], 20), (parts, None)):
        batch = TREES.Batch(segments=segments, heads=1, kv_heads=1, options={"window": window} if window else {})
        exact = exact_trees(batch)
        poison_trees(batch)
        close(batch.run(attention)[0], exact, torch.float32)


@pytest.mark.parametrize("window", [None, 7, 64])
def test_mutual_rows_see_each_other(window):
    segments = MUTUAL.SEGMENTS[:5]
    q, k, v, k_pages, v_pages, step = MUTUAL.batch(segments)
    sinks, softcap = (torch.linspace(-2, 3, MUTUAL.HEADS), 20.0) if window == 7 else (None, None)
    out = attention(q, k, v, k_pages, v_pages, step, scaling=0.3, window=window, sinks=sinks, softcap=softcap)
    for s, (rows, _, _) in enumerate(segments):
        for r in {0, rows // 2, rows - 1}:
            wanted = MUTUAL.by_hand(q, k_pages, v_pages, step, segments, s, r, window, sinks, 0.3, softcap)
            got = out[int(step.seg_start[s]) + r].double()
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=2e-5)


EXACT = {"segments": ((1, 0, False), (5, 70, False), (2, 126, False), (1, 63, False)), "page_size": 32}


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(launches, "EXACT_CHUNK", 64)


@pytest.mark.parametrize("options", [{}, {"window": 50, "sinks": True, "softcap": 3.0}, {"heads": 10}])
def test_with_a_fixed_width_a_row_has_the_same_bits_alone(options, short_chunks):
    case = ROWS.Case(**EXACT, **options, dtype=torch.bfloat16)
    batch, k_pages, v_pages = case.run(exactly)
    for s, (rows, _, _) in enumerate(case.segments):
        for r in {0, rows - 1}:
            flat = slice(case.start[s] + r, case.start[s] + r + 1)
            step = case.row_step(s, r)
            pages = k_pages.clone(), v_pages.clone()
            alone = exactly(case.q[flat], case.k[flat], case.v[flat], *pages, step, **case.options())
            assert torch.equal(alone[0], batch[flat][0]), (s, r)


@pytest.mark.parametrize("options", [{}, {"window": 6}])
def test_with_a_fixed_width_a_node_has_the_bits_of_the_chain_of_its_path(options, short_chunks):
    segments = [*TREES.trees(1, (20, 6, "deep"), (61, 8, "any")), TREES.Segment(25, rows=2)]
    batch = TREES.Batch(segments=segments, heads=2, kv_heads=1, dtype=torch.bfloat16, options=options)
    TREES.check(batch, exactly, rows=2)


@pytest.mark.parametrize("processors", [1, 200])
def test_how_keys_are_split_is_a_matter_of_rounding(processors, monkeypatch):
    monkeypatch.setattr(attention_triton, "gpu_of", lambda _: launches.Gpu(processors=processors))
    case = ROWS.Case(segments=((3, 300, False), (1, 80, False)), sinks=True)
    splits = launches.launches_of(
        Sizes.of(case.step), launches.Geometry(6, 2, 32, 32, 4), attention_triton.gpu_of(DEVICE)
    )[0].splits
    assert splits == 1 if processors == 1 else splits >= 3
    for window in (None, 200):
        case.window = window
        close(case.run(attention)[0], ROWS.oracle(case), torch.float32)


def test_a_broken_draft_leaves_the_rows_that_do_not_see_it_alone():
    case = ROWS.Case(segments=((8, 60, False), (5, 10, False)))
    clean = case.run(attention)[0]
    case.k[5], case.v[5] = POISON[0], POISON[1]
    dirty = case.run(attention)[0]
    assert torch.equal(dirty[:5], clean[:5]) and torch.equal(dirty[8:], clean[8:])
    assert dirty[5:8].isnan().all()
    case.k[5], case.v[5] = clean[0, 0, 0], POISON[1]
    assert case.run(attention)[0][5:8].isnan().all()
    tree = TREES.Batch(segments=[TREES.Segment(60, [-1, -1, 0, 1, 3, 2]), TREES.Segment(9, rows=2)])
    clean = tree.run(attention)[0]
    tree.k[2], tree.v[2] = POISON[0], POISON[1]
    dirty = tree.run(attention)[0]
    harmed, rest = [2, 4, 5], [0, 1, 3, 6, 7, 8]
    assert torch.equal(dirty[rest], clean[rest]) and dirty[harmed].isnan().all()


def test_rows_are_written_to_their_slots_and_padding_is_zero_and_writes_nothing():
    case = ROWS.Case(segments=ROWS.MIXED[:3], padding=4, dims=40, width=24)
    case.q[-4:], case.k[-4:], case.v[-4:] = POISON[0], POISON[0], POISON[0]
    out, k_pages, v_pages = case.run(attention)
    k_want, v_want = case.k_pages.clone(), case.v_pages.clone()
    for row, slot in enumerate(case.step.slots):
        if slot >= 0:
            k_want[slot // 16, :, slot % 16], v_want[slot // 16, :, slot % 16] = case.k[row], case.v[row]
    assert torch.equal(k_pages, k_want) and torch.equal(v_pages, v_want)
    assert (out[-4:] == 0).all() and not out.isnan().any()


def test_inputs_and_pages_may_be_views_with_strides():
    case = ROWS.Case(segments=ROWS.MIXED[:2], dtype=torch.bfloat16)
    want = case.run(attention)[0]
    plain = case.q, case.k, case.v
    case.q, case.k, case.v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in plain)
    assert torch.equal(case.run(attention)[0], want)
    case.q, case.k, case.v = (x.transpose(0, 2).contiguous().transpose(0, 2) for x in plain)
    assert torch.equal(case.run(attention)[0], want)
    both = there(torch.stack([case.k_pages, case.v_pages], 3))  # keys and values side by side
    got = attention_triton.attention(
        *map(there, plain), both[:, :, :, 0], both[:, :, :, 1], case.step, **case.options()
    )
    assert torch.equal(got.cpu(), want)


def test_tables_of_a_larger_bucket_serve_step_after_step_at_the_same_addresses():
    """As a captured graph has it: sizes and addresses are fixed, what the tables hold is not."""
    first = ROWS.Case(segments=((1, 30, False), (4, 70, False)), dtype=torch.bfloat16)
    second = TREES.Batch(segments=[TREES.Segment(60, [-1, 0, 0, 1]), TREES.Segment(9, rows=2)], dtype=torch.bfloat16)
    tables = DeviceTables.empty(Sizes(9, 3, 12, 1, 8, 0, 192), DEVICE)
    found = []
    for batch, exact in ((first, ROWS.oracle(first)), (second, exact_trees(second)), (first, None)):
        rows = len(batch.q)
        tables.fill(batch.step)
        tables.upload()

        def bucket(q, k, v, k_pages, v_pages, step, rows=rows, **options):
            pad = lambda x: torch.cat([x, x.new_full((9 - rows, *x.shape[1:]), POISON[0])])  # noqa: E731
            none = np.zeros(0, np.int32)
            planned = AttentionStep(none, none, none, none, none > 0, none[None], step.page_size)
            planned.plans[attention_triton.TABLES] = tables
            pages = there(k_pages), there(v_pages)
            out = attention_triton.attention(*map(there, map(pad, (q, k, v))), *pages, planned, **options)
            assert (out[rows:] == 0).all()
            return out[:rows].cpu()

        got = batch.run(bucket)[0]
        found.append(got)
        if exact is not None:
            close(got, exact, torch.bfloat16)
    assert torch.equal(found[0], found[2]), "something of the step between is left in the tables"


def test_a_step_that_does_not_fit_is_refused():
    case = ROWS.Case(segments=((1, 30, False), (4, 70, False)))
    tables = DeviceTables.empty(Sizes(9, 1, 12, 0, 8, 0, 192), DEVICE)
    with pytest.raises(ValueError, match="does not fit into tables"):
        tables.fill(case.step)


def test_what_the_kernels_do_not_serve_goes_to_the_reference_and_is_logged_once(caplog):
    case = ROWS.Case(segments=((2, 5, False),), dtype=torch.float64)
    for _ in range(2):
        assert torch.equal(case.run(attention)[0], case.run(ROWS.attention_reference)[0])
    assert len(caplog.records) == 1 and "float64" in caplog.text


def test_no_rows_give_no_rows():
    case = ROWS.Case(segments=((1, 0, False),))
    none = np.zeros(0, np.int32)
    step = AttentionStep(none, none, none, none, none > 0, none.reshape(0, 0), 16)
    assert attention(case.q[:0], case.k[:0], case.v[:0], case.k_pages, case.v_pages, step, scaling=1.0).shape[0] == 0
