"""A row of a token tree gives the bits of a plain decode row with the same keys, whatever tree stands around it."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from specdec_nn.ops.ancestor_bits.reference import ancestor_bits_reference
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference

attention = pytest.importorskip("specdec_nn.ops.attention.numba").attention
plan = pytest.importorskip("specdec_nn.ops.attention.plan")

OPS = {"reference": attention_reference, "numba": attention}
NAN = float("nan")


def random_parents(rng, nodes, shape):
    """Parents of a random tree: of any form, "deep" ones mostly chains, "wide" ones mostly children of one node."""
    if shape == "deep":
        return [int(i - 1 if rng.random() < 0.8 else rng.integers(-1, i)) for i in range(nodes)]
    if shape == "wide":
        return [-1 if rng.random() < 0.7 else int(rng.integers(-1, i)) for i in range(nodes)]
    return [int(rng.integers(-1, i)) for i in range(nodes)]


def path_of(parents, row):
    """Rows of the tree from the newest id (row 0) down to `row`."""
    path = [row]
    while path[0]:
        path.insert(0, parents[path[0] - 1] + 1)
    return path


@dataclass
class Segment:
    """Rows first .. of a tree that begins at key `context`; a chain if `parents` is None, `rows` then says how long."""

    context: int
    parents: list | None = None
    first: int = 0
    rows: int | None = None
    prompt: bool = False

    def __post_init__(self):
        if self.rows is None:
            self.rows = len(self.parents) + 1 - self.first

    def keys(self, row):
        """Keys that a row of the segment sees, in order of position, window aside."""
        if self.parents is None:
            return [*range(self.context + self.first + row + 1)]
        return [*range(self.context), *(self.context + node for node in path_of(self.parents, self.first + row))]


@dataclass
class Batch:
    """A ragged batch of segments whose pages hold random keys and values."""

    segments: list
    dtype: torch.dtype = torch.float32
    heads: int = 6
    kv_heads: int = 2
    dims: int = 32
    width: int = 32
    page_size: int = 16
    padding: int = 0
    options: dict = field(default_factory=dict)
    sinks: bool = False
    seed: int = 0

    def __post_init__(self):
        rng, g = np.random.default_rng(self.seed), torch.Generator().manual_seed(self.seed)
        draw = lambda *shape: torch.randn(*shape, generator=g).to(self.dtype)  # noqa: E731
        rows = np.array([s.rows for s in self.segments])
        context = np.array([s.context + s.first for s in self.segments])
        pages = -(-(context + rows) // self.page_size)
        self.start = np.cumsum([0, *rows])
        total = int(self.start[-1]) + self.padding
        order = rng.permutation(int(pages.sum()) + 3)
        self.table = np.full((len(rows), pages.max()), -1, np.int32)
        slots = np.full(total, -1, np.int32)
        for s, count in enumerate(pages):
            self.table[s, :count], order = order[:count], order[count:]
            own = np.arange(context[s], context[s] + rows[s])
            slots[self.start[s] : self.start[s + 1]] = self.slots(s, own)
        self.q = draw(total, self.heads, self.dims)
        self.k, self.v = draw(total, self.kv_heads, self.dims), draw(total, self.kv_heads, self.width)
        shape = int(pages.sum()) + 3, self.kv_heads, self.page_size
        self.k_pages, self.v_pages = draw(*shape, self.dims), draw(*shape, self.width)
        self.arguments = {"scaling": 0.3, "sinks": draw(self.heads) if self.sinks else None, **self.options}
        tree = np.array([-1 if s.parents is None else s.context for s in self.segments], np.int32)
        words = max((len(s.parents or ()) + 64) // 64 for s in self.segments)
        bits = np.zeros((total, words), np.int64)
        for s, segment in enumerate(self.segments):
            if segment.parents is not None:
                parents = torch.tensor(segment.parents, dtype=torch.int32)
                own = ancestor_bits_reference(parents, [len(parents)])[segment.first :][: segment.rows].numpy()
                bits[self.start[s] : self.start[s + 1], : own.shape[1]] = own
        prompt = np.array([s.prompt for s in self.segments])
        columns = [np.asarray(x, np.int32) for x in (self.start[:-1], rows, context)]
        self.step = AttentionStep(slots, *columns, prompt, self.table, self.page_size, tree, bits)

    def slots(self, s, keys):
        return self.table[s, keys // self.page_size] * self.page_size + keys % self.page_size

    def run(self, op):
        k_pages, v_pages = self.k_pages.clone(), self.v_pages.clone()
        return op(self.q, self.k, self.v, k_pages, v_pages, self.step, **self.arguments), k_pages, v_pages

    def alone(self, op, s, r, k_pages, v_pages):
        """Row r of segment s as the newest row of a chain in pages of its own, everything it may not see being NaN."""
        keys = np.array(self.segments[s].keys(r))
        end, window = len(keys), self.arguments.get("window")
        first = 0 if window is None else max(0, end - window)
        slots = torch.from_numpy(self.slots(s, keys[first:]).astype(np.int64))
        count = -(-end // self.page_size)
        at = torch.arange(first, end)
        pages = []
        for old in (k_pages, v_pages):
            new = torch.full((count, *old.shape[1:]), NAN, dtype=old.dtype)
            new[at // self.page_size, :, at % self.page_size] = old[slots // self.page_size, :, slots % self.page_size]
            pages.append(new)
        flat = slice(self.start[s] + r, self.start[s] + r + 1)
        one = lambda value: np.array([value], np.int32)  # noqa: E731
        table = np.arange(count, dtype=np.int32)[None]
        step = AttentionStep(one(end - 1), one(0), one(1), one(end - 1), one(0) > 0, table, self.page_size)
        return op(self.q[flat], self.k[flat], self.v[flat], *pages, step, **self.arguments)[0]


def check(batch, op, rows=None):
    """Every row of every tree, or some of them, and every chain's."""
    out, k_pages, v_pages = batch.run(op)
    rng = np.random.default_rng(1)
    for s, segment in enumerate(batch.segments):
        if segment.prompt and op is attention_reference:
            continue
        some = range(segment.rows)
        if rows is not None and rows < segment.rows:
            some = {0, segment.rows - 1, *rng.integers(0, segment.rows, rows).tolist()}
        for r in some:
            assert torch.equal(out[batch.start[s] + r], batch.alone(op, s, r, k_pages, v_pages)), (s, r)
    assert (out[batch.start[-1] :] == 0).all()


def trees(seed, *sizes):
    """Segments with random trees of (context, nodes, shape)."""
    rng = np.random.default_rng(seed)
    return [Segment(context, random_parents(rng, nodes, shape)) for context, nodes, shape in sizes]


BRANCHES = trees(0, (70, 16, "any"), (5, 9, "wide"), (255, 20, "deep"), (0, 6, "any"), (63, 3, "any"), (128, 1, "any"))
MIXED = [Segment(90, rows=5), *BRANCHES[:3], Segment(25, rows=30, prompt=True), Segment(300, rows=1), BRANCHES[4]]
CASES = {
    "trees": {"segments": BRANCHES},
    "trees beside chains and prompts": {"segments": MIXED, "padding": 3},
    "window": {"segments": MIXED, "options": {"window": 20}},
    "window of one": {"segments": BRANCHES, "options": {"window": 1}},
    "window inside the path": {"segments": trees(1, (40, 30, "deep"), (200, 60, "deep")), "options": {"window": 6}},
    "window past a chunk": {"segments": trees(2, (600, 12, "any"), (511, 30, "deep")), "options": {"window": 300}},
    "softcap": {"segments": MIXED, "options": {"softcap": 2.0}},
    "sinks": {"segments": MIXED, "sinks": True},
    "everything": {
        "segments": MIXED, "options": {"window": 33, "softcap": 5.0}, "sinks": True, "dims": 48, "padding": 1
    },
    "a head each": {"segments": BRANCHES, "heads": 4, "kv_heads": 4},
    "five heads a group": {"segments": BRANCHES, "heads": 10},
    "narrow values": {"segments": BRANCHES, "dims": 40, "width": 24},
    "odd sizes": {"segments": BRANCHES, "dims": 5, "width": 3, "page_size": 7, "heads": 3, "kv_heads": 3},
    "pages of one": {"segments": BRANCHES, "page_size": 1},
    "large pages": {"segments": BRANCHES, "page_size": 100},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", OPS)
def test_every_node_gives_the_bits_of_the_chain_of_its_path(op, name, dtype):
    check(Batch(**CASES[name], dtype=dtype), OPS[op])


@pytest.mark.parametrize("seed", range(10))
def test_random_trees_give_the_bits_of_their_chains(seed):
    rng = np.random.default_rng(seed)
    shapes = ("any", "deep", "wide")
    segments = [
        Segment(int(rng.integers(0, 400)), random_parents(rng, int(rng.integers(0, 90)), shapes[rng.integers(3)]))
        if rng.random() < 0.7
        else Segment(int(rng.integers(0, 300)), rows=int(rng.integers(1, 8)))
        for _ in range(int(rng.integers(1, 6)))
    ]
    group, kv_heads = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    batch = Batch(
        segments=segments,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        dims=int(rng.integers(1, 80)),
        width=int(rng.integers(1, 80)),
        page_size=int(rng.choice([1, 5, 16, 32, 64, 70])),
        padding=int(rng.integers(0, 3)),
        options={"window": int(rng.integers(1, 300))} if rng.random() < 0.5 else {},
        sinks=bool(rng.random() < 0.3),
        seed=seed,
    )
    for op in OPS.values():
        check(batch, op, rows=12)


@pytest.mark.parametrize("shape", ["any", "deep", "wide"])
@pytest.mark.parametrize("op", OPS)
def test_trees_of_256_nodes_give_the_bits_of_their_chains(op, shape):
    check(Batch(segments=trees(3, (200, 256, shape))), OPS[op], rows=20)
    check(Batch(segments=trees(4, (60, 256, shape)), options={"window": 70}), OPS[op], rows=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", OPS)
def test_parts_of_a_tree_find_their_ancestors_among_the_rows_that_ran_before(op, dtype):
    for context, window, shape in ((50, None, "deep"), (250, None, "deep"), (120, 30, "deep"), (250, 5, "wide")):
        (whole,) = trees(context, (context, 40, shape))
        parts = [Segment(context, whole.parents, first=first, rows=min(8, 41 - first)) for first in range(0, 41, 8)]
        batch = Batch(segments=parts, dtype=dtype, options={} if window is None else {"window": window})
        check(batch, OPS[op])


def test_how_the_work_is_cut_does_not_show_in_a_tree():
    for window in (None, 290):
        segments = trees(5, (900, 30, "any"), (250, 40, "deep"))
        batch = Batch(segments=segments, options={} if window is None else {"window": window})
        reach = window or plan.UNBOUNDED
        results = []
        for threads in (1, 2, 64):
            cut = plan.plan(batch.step, reach, batch.kv_heads, threads)
            batch.step.plans = {("numba", reach): cut}
            results.append((len(cut.merges), batch.run(attention)[0]))
        assert results[0][0] == 0 and results[-1][0] > 0
        assert all(torch.equal(result, results[0][1]) for _, result in results)


@pytest.mark.parametrize("op", OPS)
def test_a_broken_node_harms_its_descendants_and_nobody_else(op):
    parents = [-1, -1, 0, 1, 3, 2]
    batch = Batch(segments=[Segment(60, parents), Segment(9, rows=2)])
    clean = batch.run(OPS[op])[0]
    batch.k[2], batch.v[2] = NAN, float("inf")  # node 1
    dirty = batch.run(OPS[op])[0]
    harmed = [2, 4, 5]
    rest = [0, 1, 3, 6, 7, 8]
    assert torch.equal(dirty[rest], clean[rest])
    assert dirty[harmed].isnan().all()


@pytest.mark.parametrize("op", OPS)
def test_a_tree_without_a_common_root_gives_the_bits_of_its_chains(op):
    """A drafter's tree: what it grows from stands before it, and its first level sees its own row of the tree alone."""
    batch = Batch(segments=[Segment(70, [-1, 0, 0, 2]), Segment(20, rows=2)])
    paths = [[0], [1], [0, 2], [1, 3], [0, 2, 4]]
    batch.step.ancestors[:5, 0] = [sum(1 << row for row in path) for path in paths]
    out, k_pages, v_pages = batch.run(OPS[op])
    for r, path in enumerate(paths):
        batch.segments[0].keys = lambda _, path=path: [*range(70), *(70 + row for row in path)]
        assert torch.equal(out[r], batch.alone(OPS[op], 0, r, k_pages, v_pages)), r
