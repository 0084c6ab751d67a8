"""Checks of the device that writes down each wait, run by test_device_step.py in the process of device_checks.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from specdec_testing.watched_device import DEVICE, install, waits

install()


def test_the_watched_device_sees_every_way_to_wait() -> None:
    x = torch.arange(6, device=DEVICE)
    ways: dict[str, Callable[[], Any]] = {
        "item": lambda: x[0].item(),
        "tolist": lambda: x.tolist(),
        "bool": lambda: bool(x[1] > 0),
        "int": lambda: int(x.sum()),
        "cpu": lambda: x.cpu(),
        "to": lambda: x.to("cpu"),
        "copy": lambda: torch.empty(6, dtype=torch.int64).copy_(x),
        "nonzero": lambda: x.nonzero(),
        "where": lambda: torch.where(x > 2),
        "mask": lambda: x[x > 2],
        "masked_select": lambda: x.masked_select(x > 2),
        "unique": lambda: x.unique(),
        "repeat_interleave": lambda: x.repeat_interleave(x),
        "bincount": lambda: x.bincount(),
        "equal": lambda: torch.equal(x, x),
        "an index on the host": lambda: x[torch.tensor([1, 2])],
        "a list as an index": lambda: x[[1, 2]],
        "a copy that waits": lambda: torch.zeros(3).to(DEVICE),
        "a new tensor": lambda: torch.tensor([1, 2], device=DEVICE),
    }
    for name, way in ways.items():
        with waits() as found:
            way()
        assert found, name
    with pytest.raises((TypeError, RuntimeError), match="numpy"):
        x.numpy()
    with pytest.raises(RuntimeError, match="address"):
        x.data_ptr()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(6)


def test_the_watched_device_lets_pass_what_does_not_wait() -> None:
    x, y = torch.arange(6, device=DEVICE), torch.zeros(6, device=DEVICE)
    with waits() as found:
        index = torch.from_numpy(np.array([2, 4])).to(DEVICE, non_blocking=True)
        y[index] = 1.0
        y.masked_fill_(x > 4, 3.0)
        y[x > 4] = 2.0
        torch.where(x > 2, y, 0.0)[1:3].sum()
        x.float().topk(2)
        x.view(2, 3)[:, None].expand(2, 4, 3).reshape(-1)
        torch.full((2,), 3, device=DEVICE) + 1
    assert found == []
    assert y.cpu().tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, 2.0]
