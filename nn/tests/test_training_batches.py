"""Batches of training: every pair of neighbouring ids is in a pass once, and shapes and orders are fixed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specdec_core.training import TrainingBatch
from specdec_nn.training.batches import Packing, ahead, behind, ids_in, lanes, unbroken, windows

LENGTHS = (5, 1, 30, 12, 2, 17, 64, 9, 16, 3)


@dataclass
class Text:
    ids: Tensor
    prompt: int
    last: Tensor
    aux: Tensor


def texts() -> list[Text]:
    """Return texts in which each id and each state tell which text and which place they are of."""
    found = []
    for number, length in enumerate(LENGTHS):
        ids = 1000 * (number + 1) + torch.arange(length)
        found.append(Text(ids, min(3, length), ids[:, None].float(), torch.stack([ids, -ids], dim=1).float()))
    return found


def batches_of(packing: Packing, seed: int | None, number: int = 0) -> list[TrainingBatch]:
    return [packing.batch(chosen) for chosen in packing.epoch(seed, number)]


def pairs(batch: TrainingBatch) -> list[tuple[int, int]]:
    """Return the ids of each row and of the row behind it, where both are of one window."""
    rows = unbroken(batch, 0, 1)
    return list(zip(batch.ids[rows].tolist(), ahead(batch.ids)[rows].tolist(), strict=True))


@pytest.mark.parametrize("width", [8, 16, 100])
def test_every_pair_of_neighbours_is_in_a_pass_once(width: int) -> None:
    found = [pair for batch in batches_of(Packing(texts(), 2, width), 0) for pair in pairs(batch)]
    wanted = [(a, a + 1) for text in texts() for a in text.ids[:-1].tolist()]
    assert sorted(found) == wanted


def test_rows_keep_their_states_and_positions_and_say_who_wrote_them() -> None:
    for batch in batches_of(Packing(texts(), 2, 16), 0):
        real = batch.request >= 0
        assert batch.last[real].flatten().tolist() == batch.ids[real].tolist()
        assert batch.aux[real].tolist() == [[i, -i] for i in batch.ids[real].tolist()]
        assert (batch.ids[real] % 1000).tolist() == batch.positions[real].tolist()
        assert torch.equal(batch.written[real], batch.positions[real] >= 3)
        assert not batch.last[~real].any() and not batch.written[~real].any() and not batch.ids[~real].any()


def test_batches_have_one_shape_and_count_their_ids() -> None:
    packing = Packing(texts(), 2, 16)
    for chosen, batch in zip(packing.epoch(0), batches_of(packing, 0), strict=True):
        assert batch.ids.shape == (2, 16)
        assert ids_in(chosen) == int((batch.request >= 0).sum())


def test_a_seed_and_a_pass_fix_the_order_and_each_pass_has_its_own() -> None:
    def order(seed: int | None, number: int) -> list[int]:
        return [i for b in batches_of(Packing(texts(), 2, 16), seed, number) for i in b.ids.flatten().tolist()]

    assert order(3, 1) == order(3, 1)
    assert len({tuple(order(seed, number)) for seed, number in ((3, 0), (3, 1), (4, 0))}) == 3
    assert order(None, 0) == order(None, 7)


def test_lanes_are_filled() -> None:
    cut = windows([40] * 10 + [20] * 20 + [10] * 40, 64)
    used = [sum(window.rows for window in lane) for lane in lanes(cut, 64)]
    assert max(used) <= 64
    assert sum(used) / (64 * len(used)) > 0.9


def test_shifts_move_rows_within_their_lane() -> None:
    rows = torch.arange(1, 9).view(2, 4)
    assert ahead(rows).tolist() == [[2, 3, 4, 0], [6, 7, 8, 0]]
    assert behind(rows, 2).tolist() == [[0, 0, 1, 2], [0, 0, 5, 6]]
    assert ahead(rows, 5).tolist() == behind(rows, 5).tolist() == [[0] * 4] * 2
    assert ahead(rows, 0).tolist() == behind(rows, 0).tolist() == rows.tolist()


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (0, 2), (2, 1), (20, 0), (0, 20)])
def test_unbroken_rows_are_those_whose_neighbours_are_of_their_window(before: int, after: int) -> None:
    (batch, *_) = batches_of(Packing(texts(), 2, 16), 0)
    marks = batch.request.tolist()
    wanted = [
        [
            lane[i] >= 0 and all(0 <= j < 16 and lane[j] == lane[i] for j in range(i - before, i + after + 1))
            for i in range(16)
        ]
        for lane in marks
    ]
    assert unbroken(batch, before, after).tolist() == wanted
