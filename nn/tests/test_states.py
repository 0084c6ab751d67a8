"""States of recurrent layers: cut anywhere, taken back anywhere, a request has the state of its committed rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specdec_nn.cache.states import LayerState, StatePool, StateStep
from specdec_nn.ops.gated_scan.numba import gated_scan
from specdec_nn.ops.gated_scan.reference import gated_scan_reference
from specdec_nn.ops.selective_scan.numba import selective_scan
from specdec_nn.ops.selective_scan.reference import selective_scan_reference
from specdec_nn.ops.short_conv.numba import short_conv
from specdec_nn.ops.short_conv.reference import short_conv_reference

CPU = torch.device("cpu")
HEADS, GROUPS, KEY, VALUE, CHANNELS, TAPS = 6, 2, 5, 19, 300, 4
Op = Callable[[Tensor, StatePool, StateStep], Tensor]  # rows [N, F] of features, of which an op takes what it needs


def _convolve(op: Any) -> Op:
    weight = torch.randn(TAPS, CHANNELS, generator=torch.Generator().manual_seed(1))

    def run(rows: Tensor, pool: StatePool, step: StateStep) -> Tensor:
        state = pool.layer((0, 0), (TAPS - 1, CHANNELS), ((CHANNELS,),), CPU)
        return op(rows[:, :CHANNELS], weight, weight[0] / 2, state, step)  # type: ignore[no-any-return]

    return run


def _scan(op: Any, *, delta: bool) -> Op:
    def run(rows: Tensor, pool: StatePool, step: StateStep) -> Tensor:
        sizes = (GROUPS * KEY, GROUPS * KEY, HEADS * VALUE, HEADS, HEADS)
        q, k, v, decay, beta = rows[:, : sum(sizes)].split(sizes, dim=1)
        logs = ((GROUPS, KEY), (HEADS, VALUE), (HEADS,), (HEADS,))
        state = pool.layer((0, 0), (HEADS, KEY, VALUE), logs, CPU)
        k = k.reshape(-1, GROUPS, KEY) / KEY**0.5
        strength = beta.sigmoid() if delta else None
        v = v.reshape(-1, HEADS, VALUE)
        return op(q.reshape(-1, GROUPS, KEY), k, v, -decay.abs(), strength, state, step).flatten(1)  # type: ignore[no-any-return]

    return run


def _select(op: Any) -> Op:
    a = -torch.rand(100, KEY, generator=torch.Generator().manual_seed(2))

    def run(rows: Tensor, pool: StatePool, step: StateStep) -> Tensor:
        x, dt, b, c = rows[:, : 200 + 2 * KEY].split((100, 100, KEY, KEY), dim=1)
        state = pool.layer((0, 0), (100, KEY), ((100,), (100,), (KEY,)), CPU)
        return op(x, dt.abs(), b, c, a, state, step)  # type: ignore[no-any-return]

    return run


OPS = {
    "short_conv": (_convolve(short_conv), _convolve(short_conv_reference)),
    "delta_rule": (_scan(gated_scan, delta=True), _scan(gated_scan_reference, delta=True)),
    "mamba_2": (_scan(gated_scan, delta=False), _scan(gated_scan_reference, delta=False)),
    "mamba_1": (_select(selective_scan), _select(selective_scan_reference)),
}
every_op = pytest.mark.parametrize("op", OPS)


def features(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, CHANNELS, generator=torch.Generator().manual_seed(seed))


def at_once(op: Op, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Run a request in one piece; return its outputs and its state."""
    pool = StatePool()
    step = pool.step([0], [len(rows)], [pool.take()], [0], np.array([len(rows)]))
    out = op(rows, pool, step)
    return out, state_of(pool)


def state_of(pool: StatePool, slot: int = 0) -> Tensor:
    layer: LayerState = pool._layers[0, 0]
    return layer.snapshot[slot].clone()


@every_op
def test_a_compiled_op_is_its_definition(op: str) -> None:
    compiled, definition = OPS[op]
    (out, state), (wanted, wanted_state) = at_once(compiled, features(40)), at_once(definition, features(40))
    assert torch.allclose(out, wanted, atol=2e-5, rtol=1e-5)
    assert torch.allclose(state, wanted_state, atol=2e-5, rtol=1e-5)


@every_op
@pytest.mark.parametrize("which", [0, 1], ids=["compiled", "definition"])
def test_three_requests_in_ragged_steps_with_rejections_have_the_states_of_their_committed_rows(
    op: str, which: int
) -> None:
    run, rng, pool = OPS[op][which], np.random.default_rng(5), StatePool(1)
    texts = [features(60, seed) for seed in (1, 2, 3)]
    slots = [pool.take() for _ in texts]
    done = [0, 0, 0]
    outs: list[list[Tensor]] = [[], [], []]
    while min(done) < 60:
        active = [i for i in rng.permutation(3) if done[i] < 60][: rng.integers(1, 4)]
        pieces, drafts, certain, starts = [], [], [], []
        for i in active:
            count = min(int(rng.integers(1, 7)), 60 - done[i])
            drafted = int(rng.integers(0, count))
            wrong = features(3, 99)[: rng.integers(0, 4)] if drafted else features(0)
            starts.append(sum(map(len, pieces)) + 1)  # one row of padding first
            pieces.append(torch.cat((texts[i][done[i] : done[i] + count], wrong)))
            drafts.append((drafted, count))
            certain.append(done[i] + count - drafted)
        lengths = [len(piece) for piece in pieces]
        step = pool.step(starts, lengths, [slots[i] for i in active], [done[i] for i in active], np.array(certain))
        out = run(torch.cat((features(1, 7), *pieces)), pool, step)
        assert not out[0].any()  # padding
        for i, start, (drafted, count) in zip(active, starts, drafts, strict=True):
            accepted = count - drafted + int(rng.integers(0, drafted + 1))
            outs[i].append(out[start : start + accepted])
            done[i] += accepted
    for i, slot in enumerate(slots):  # a last row, so that nothing is pending
        step = pool.step([0], [1], [slot], [60], np.array([61]))
        outs[i].append(run(features(1, 8), pool, step))
        wanted, state = at_once(run, torch.cat((texts[i], features(1, 8))))
        assert torch.equal(torch.cat(outs[i]), wanted)
        assert torch.equal(state_of(pool, slot), state)


def test_rows_that_would_take_a_snapshot_back_are_refused_with_both_places() -> None:
    pool = StatePool()
    slot = pool.take()
    pool.step([0], [6], [slot], [0], np.array([4]))
    with pytest.raises(ValueError, match=r"begin behind 3 others, .* behind 4, with 2 rows logged"):
        pool.step([0], [1], [slot], [3], np.array([4]))
    pool.step([0], [1], [slot], [6], np.array([7]))
    with pytest.raises(ValueError, match="begin behind 9 others"):
        pool.step([0], [1], [slot], [9], np.array([10]))


def test_a_slot_begins_anew_with_whoever_takes_it() -> None:
    run, pool = OPS["delta_rule"][0], StatePool(1)
    for seed in (1, 2):
        slot = pool.take()
        rows = features(9, seed)
        out = run(rows, pool, pool.step([0], [9], [slot], [0], np.array([9])))
        assert torch.equal(out, at_once(run, rows)[0])
        pool.release(slot)
