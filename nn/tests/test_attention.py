from dataclasses import dataclass

import numpy as np
import pytest
import torch

from specdec_nn.ops.attention.reference import AttentionStep, attention_reference

attention = pytest.importorskip("specdec_nn.ops.attention.numba").attention

OPS = {"reference": attention_reference, "numba": attention}
NAN = float("nan")


@dataclass
class Case:
    """A ragged batch: `segments` are (rows, context, prompt), flat rows in that order, `padding` rows after them."""

    segments: tuple = ((1, 0, False), (3, 70, False), (1, 255, False), (6, 254, False), (1, 63, False), (2, 64, False))
    dtype: torch.dtype = torch.float32
    heads: int = 6
    kv_heads: int = 2
    dims: int = 32
    width: int = 32
    page_size: int = 16
    padding: int = 0
    scaling: float = 0.3
    softcap: float | None = None
    sinks: bool = False
    window: int | None = None
    seed: int = 0

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        pages = [-(-(context + rows) // self.page_size) for rows, context, _ in self.segments]
        order = rng.permutation(sum(pages) + 4)
        table = np.full((len(pages), max(pages)), -1, np.int32)
        slots = np.full(sum(rows for rows, _, _ in self.segments) + self.padding, -1, np.int32)
        self.home = []  # (page, offset) of every position of every segment
        start = [0]
        for s, (rows, context, _) in enumerate(self.segments):
            table[s, : pages[s]], order = order[: pages[s]], order[pages[s] :]
            self.home.append([(table[s, p // self.page_size], p % self.page_size) for p in range(context + rows)])
            slots[start[-1] : start[-1] + rows] = [p * self.page_size + o for p, o in self.home[s][context:]]
            start.append(start[-1] + rows)
        self.start, self.rows = start, len(slots)
        columns = np.array([(rows, context) for rows, context, _ in self.segments], np.int32)
        prompt = np.array([prompt for _, _, prompt in self.segments])
        first = np.array(start[:-1], np.int32)
        self.step = AttentionStep(slots, first, columns[:, 0], columns[:, 1], prompt, table, self.page_size)
        g = torch.Generator().manual_seed(self.seed)
        draw = lambda *shape: torch.randn(*shape, generator=g).to(self.dtype)  # noqa: E731
        self.q = draw(self.rows, self.heads, self.dims)
        self.k, self.v = draw(self.rows, self.kv_heads, self.dims), draw(self.rows, self.kv_heads, self.width)
        total = sum(pages) + 4
        self.k_pages = draw(total, self.kv_heads, self.page_size, self.dims)
        self.v_pages = draw(total, self.kv_heads, self.page_size, self.width)
        self.sink_values = draw(self.heads) * 2 if self.sinks else None

    def options(self):
        return {"scaling": self.scaling, "softcap": self.softcap, "sinks": self.sink_values, "window": self.window}

    def run(self, op):
        k_pages, v_pages = self.k_pages.clone(), self.v_pages.clone()
        return op(self.q, self.k, self.v, k_pages, v_pages, self.step, **self.options()), k_pages, v_pages

    def row_step(self, s, r):
        """Tables of row r of segment s as a batch of its own."""
        context = self.segments[s][1]
        one = lambda value: np.array([value], np.int32)  # noqa: E731
        flat = self.start[s] + r
        slots = self.step.slots[flat : flat + 1]
        table = self.step.page_table[s : s + 1]
        return AttentionStep(slots, one(0), one(1), one(context + r), np.array([False]), table, self.page_size)

    def seen(self, s, r):
        """Positions that row r of segment s sees."""
        own = self.segments[s][1] + r
        return range(0 if self.window is None else max(0, own - self.window + 1), own + 1)


def oracle(case):
    """Attention by definition: one row at a time, float64, from the inputs alone."""
    k_pages, v_pages = case.k_pages.double().numpy().copy(), case.v_pages.double().numpy().copy()
    q, k, v = (x.double().numpy() for x in (case.q, case.k, case.v))
    out = np.zeros((case.rows, case.heads, case.width))
    for s, (rows, context, _) in enumerate(case.segments):
        for r in range(rows):
            page, offset = case.home[s][context + r]
            k_pages[page, :, offset], v_pages[page, :, offset] = k[case.start[s] + r], v[case.start[s] + r]
    sinks = case.sink_values.double().numpy()[:, None] if case.sinks else np.full((case.heads, 1), -np.inf)
    for s, (rows, _, _) in enumerate(case.segments):
        for r in range(rows):
            places = np.array([case.home[s][p] for p in case.seen(s, r)])
            keys, values = (x[places[:, 0], :, places[:, 1]] for x in (k_pages, v_pages))
            keys, values = (x.repeat(case.heads // case.kv_heads, axis=1) for x in (keys, values))
            scores = np.einsum("hd,nhd->hn", q[case.start[s] + r], keys) * case.scaling
            if case.softcap:
                scores = case.softcap * np.tanh(scores / case.softcap)
            top = np.maximum(scores.max(1, keepdims=True), sinks)
            weights = np.exp(scores - top)
            weights /= weights.sum(1, keepdims=True) + np.exp(sinks - top)
            out[case.start[s] + r] = np.einsum("hn,nhd->hd", weights, values)
    return torch.from_numpy(out)


MIXED = ((1, 0, False), (40, 0, True), (5, 90, False), (30, 25, True), (3, 511, False), (70, 3, True), (1, 15, False))
CASES = {
    "decode": {},
    "prompts and decode": {"segments": MIXED},
    "padding": {"segments": MIXED[:3], "padding": 5},
    "window": {"segments": MIXED, "window": 20},
    "window of one": {"window": 1},
    "window of pages": {"window": 64},
    "window past a chunk": {"segments": ((4, 600, False), (9, 300, True)), "window": 300},
    "softcap": {"segments": MIXED[:4], "softcap": 2.0},
    "sinks": {"segments": MIXED, "sinks": True},
    "everything": {"segments": MIXED, "window": 33, "softcap": 5.0, "sinks": True, "padding": 2, "dims": 48},
    "one head each": {"heads": 4, "kv_heads": 4},
    "five heads a group": {"heads": 10, "kv_heads": 2},
    "one kv head": {"heads": 8, "kv_heads": 1},
    "narrow values": {"dims": 40, "width": 24},
    "wide values": {"dims": 16, "width": 96},
    "odd sizes": {"dims": 5, "width": 3, "page_size": 7, "heads": 3, "kv_heads": 3},
    "wide": {"dims": 192, "width": 128, "heads": 2, "kv_heads": 1, "scaling": 0.07},
    "pages of one": {"page_size": 1},
    "large pages": {"page_size": 100},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", OPS)
def test_the_result_is_that_of_the_definition_in_float64(op, name, dtype):
    case = Case(**CASES[name], dtype=dtype)
    got, exact = case.run(OPS[op])[0], oracle(case)
    assert got.dtype is dtype and got.shape == exact.shape
    unit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    slack = 4e-6
    if op == "reference" and case.step.seg_prompt.any() and dtype is not torch.float32:
        slack = 4 * unit  # torch's own attention rounds the weights too
    assert ((got.double() - exact).abs() <= 1.01 * unit * exact.abs() + slack).all()


@pytest.mark.parametrize("seed", range(12))
def test_random_ragged_batches_agree_with_the_definition(seed):
    rng = np.random.default_rng(seed)
    segments = tuple(
        (int(rng.integers(1, 90 if prompt else 12)), int(rng.integers(0, 400)), bool(prompt))
        for prompt in rng.random(int(rng.integers(1, 9))) < 0.3
    )
    group, kv_heads = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    case = Case(
        segments=segments,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        dims=int(rng.integers(1, 80)),
        width=int(rng.integers(1, 80)),
        page_size=int(rng.choice([1, 5, 16, 32, 64, 70])),
        padding=int(rng.integers(0, 4)),
        window=int(rng.integers(1, 300)) if rng.random() < 0.5 else None,
        softcap=3.0 if rng.random() < 0.3 else None,
        sinks=bool(rng.random() < 0.3),
        scaling=0.2,
        seed=seed,
    )
    exact = oracle(case)
    for op in OPS.values():
        assert (case.run(op)[0].double() - exact).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", OPS)
def test_a_row_alone_and_beside_forbidden_memory_is_bit_identical(op, name, dtype):
    """Alone, every key that the row may not see being NaN, it must give the bits that it gave in company."""
    case = Case(**CASES[name], dtype=dtype)
    batch, k_pages, v_pages = case.run(OPS[op])
    for s, (rows, _, prompt) in enumerate(case.segments):
        if prompt and op == "reference":
            continue
        for r in {0, rows // 2, rows - 1}:
            keys, values = torch.full_like(k_pages, NAN), torch.full_like(v_pages, NAN)
            for position in case.seen(s, r):
                page, offset = case.home[s][position]
                keys[page, :, offset], values[page, :, offset] = k_pages[page, :, offset], v_pages[page, :, offset]
            flat = slice(case.start[s] + r, case.start[s] + r + 1)
            alone = OPS[op](
                case.q[flat], case.k[flat], case.v[flat], keys, values, case.row_step(s, r), **case.options()
            )
            assert torch.equal(alone[0], batch[flat][0]), (s, r)


@pytest.mark.parametrize("op", OPS)
def test_a_broken_draft_leaves_the_rows_before_it_alone(op):
    case = Case(segments=((8, 60, False), (5, 10, False)))
    clean = case.run(OPS[op])[0]
    case.k[5], case.v[5] = NAN, float("inf")
    dirty = case.run(OPS[op])[0]
    assert torch.equal(dirty[:5], clean[:5]) and torch.equal(dirty[8:], clean[8:])
    assert dirty[5:8].isnan().all()


def test_how_the_work_is_cut_does_not_show():
    import specdec_nn.ops.attention.plan as module

    for window in (None, 290):
        case = Case(segments=((7, 900, False), (2, 300, False)), window=window)
        reach = window or module.UNBOUNDED
        results = []
        for threads in (1, 2, 64):
            plan = module.plan(case.step, reach, case.kv_heads, threads)
            case.step.plans = {("numba", reach): plan}
            results.append((len(plan.merges), case.run(attention)[0]))
        assert results[0][0] == 0 and results[-1][0] > 0
        assert all(torch.equal(result, results[0][1]) for _, result in results)


@pytest.mark.parametrize("op", OPS)
def test_rows_are_written_to_their_slots_and_nowhere_else(op):
    case = Case(segments=MIXED, padding=3)
    _, k_pages, v_pages = case.run(OPS[op])
    k_want, v_want = case.k_pages.clone(), case.v_pages.clone()
    for row, slot in enumerate(case.step.slots):
        if slot >= 0:
            k_want[slot // 16, :, slot % 16], v_want[slot // 16, :, slot % 16] = case.k[row], case.v[row]
    assert torch.equal(k_pages, k_want) and torch.equal(v_pages, v_want)


@pytest.mark.parametrize("op", OPS)
def test_padding_rows_are_zero_and_write_nothing(op):
    case = Case(segments=((2, 30, False),), padding=4)
    case.q[2:], case.k[2:], case.v[2:] = NAN, NAN, NAN
    out, k_pages, v_pages = case.run(OPS[op])
    assert (out[2:] == 0).all() and not out.isnan().any()
    assert not k_pages.isnan().any() and not v_pages.isnan().any()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_any_strides_are_read_rightly(op, dtype):
    case = Case(segments=MIXED, padding=2, dtype=dtype)
    want = case.run(OPS[op])[0]

    def strided(x, kind):
        if kind == "heads first":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        if kind == "part of a wider one":
            return torch.cat([x, x * 2, x], -1)[..., x.shape[-1] * 2 :]
        return x.transpose(0, 2).contiguous().transpose(0, 2)

    plain = case.q, case.k, case.v
    for kind in ("heads first", "part of a wider one", "dimensions first"):
        case.q, case.k, case.v = (strided(x, kind) for x in plain)
        assert not case.q.is_contiguous()
        assert torch.equal(case.run(OPS[op])[0], want), kind


def test_pages_may_be_views_of_a_larger_arena():
    case = Case(segments=MIXED, dtype=torch.bfloat16)
    want = case.run(attention)[0]
    both = torch.stack([case.k_pages, case.v_pages], 3)  # keys and values side by side
    got = attention(case.q, case.k, case.v, both[:, :, :, 0], both[:, :, :, 1], case.step, **case.options())
    assert torch.equal(got, want)


def test_double_precision_goes_to_the_reference():
    case = Case(segments=MIXED[:3], dtype=torch.float64)
    assert torch.equal(case.run(attention)[0], case.run(attention_reference)[0])


def test_one_step_serves_layers_with_and_without_a_window():
    case = Case(segments=((3, 700, False), (1, 80, False)))
    for window in (9, None, 300, 9):
        case.window = window
        assert (case.run(attention)[0] - oracle(case)).abs().max() < 1e-5
