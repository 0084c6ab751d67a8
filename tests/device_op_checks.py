"""Checks of ops that device_checks.py leaves to the CPU's kernels, by themselves; run by test_device_step.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from specdec_nn.ops.attention.reference import AttentionStep, attention_reference
from specdec_nn.ops.attention.triton import attention
from specdec_nn.ops.truncate.numba import truncate as numba_truncate
from specdec_nn.ops.truncate.reference import Truncation
from specdec_nn.ops.truncate.triton import truncate
from specdec_testing.watched_device import DEVICE, install, waits

install()


def test_attention_of_a_step_waits_for_nothing() -> None:
    rng = np.random.default_rng(2)
    counts, context = np.array([1, 3], np.int32), np.array([4, 2], np.int32)
    bits = np.array([[1], [1], [3], [5]], np.int64)  # a row, and a tree of two siblings
    step = AttentionStep(
        slots=np.array([4, 34, 35, 36], np.int32),
        seg_start=np.array([0, 1], np.int32),
        seg_rows=counts,
        seg_context=context,
        seg_prompt=np.zeros(2, np.bool_),
        page_table=np.array([[0], [1]], np.int32),
        page_size=32,
        seg_tree=np.array([-1, 2], np.int32),
        ancestors=bits,
    )
    q, k, v = (torch.from_numpy(rng.normal(size=(4, heads, 16)).astype(np.float32)) for heads in (2, 1, 1))
    pages = [torch.from_numpy(rng.normal(size=(2, 1, 32, 16)).astype(np.float32)) for _ in range(2)]
    there = [part.to(DEVICE) for part in (q, k, v, *pages)]
    with waits() as found:
        mine = attention(*there, step, scaling=0.25)
    assert found == []
    wanted = attention_reference(q, k, v, *pages, dataclasses.replace(step), scaling=0.25)
    torch.testing.assert_close(mine.cpu(), wanted)


def test_attention_of_a_tree_that_was_grown_on_the_device_is_that_of_its_bits() -> None:
    bits = np.array([[1, 0], [3, 0], [5, 0], [11, 0]], np.int64)
    one = lambda value: np.array([value], np.int32)  # noqa: E731
    slots = np.array([4, 5, 6, 7], np.int32)
    step = AttentionStep(
        slots, one(0), one(4), one(4), np.zeros(1, np.bool_), one(0)[None], 32, seg_tree=one(4), ancestors=bits
    )
    grown = dataclasses.replace(step, ancestors=np.zeros_like(bits), grown=torch.from_numpy(bits).to(DEVICE))
    g = torch.Generator().manual_seed(3)
    shapes = ((4, 2, 16), (4, 1, 16), (4, 1, 16), (1, 1, 32, 16), (1, 1, 32, 16))
    q, k, v, *pages = (torch.randn(shape, generator=g) for shape in shapes)
    there = [part.to(DEVICE) for part in (q, k, v, *pages)]
    with waits() as found:
        mine = attention(*there, grown, scaling=0.25)
    assert found == []
    wanted = attention_reference(q, k, v, *(part.clone() for part in pages), step, scaling=0.25)
    torch.testing.assert_close(mine.cpu(), wanted)
    by_definition = attention_reference(*there, grown, scaling=0.25)
    torch.testing.assert_close(by_definition.cpu(), wanted)


def test_truncation_of_a_step_waits_for_nothing() -> None:
    logits = torch.tensor([[0.3, 1.0, -0.5, 0.2]])
    columns = ((0.7, np.float32), (0.0, np.float64), (2, np.int64), (1.0, np.float64))
    asked = Truncation(*(np.full(1, value, kind) for value, kind in columns))
    there = logits.to(DEVICE)
    with waits() as found:
        mine = truncate(there, asked)
    assert found == []
    assert torch.equal(mine.cpu(), numba_truncate(logits, asked))
