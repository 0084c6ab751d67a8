"""Times on a device and on the host, and the speed at which memory is copied."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def wait(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return how long a call takes until its work on the device is done."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def kernel_seconds(call: Callable[[int], Any], device: torch.device, count: int = 10) -> float:
    """Return the time of one call's kernels, the best of five rounds of `count` calls; each gets its number.

    On a GPU a round is captured in a graph, so that launches from Python do not count. On a CPU one call is timed.
    """
    if device.type != "cuda":
        return seconds(lambda: call(0), device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for n in range(3):
            call(n)
    wait(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for n in range(count):
            call(n)
    best = float("inf")
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3 / count)
    return best


def copy_bytes_per_second(device: torch.device, size: int = 2**30) -> float:
    """Return the bytes that a large copy on the device reads and writes in a second."""
    source = torch.zeros(size if device.type == "cuda" else 2**22, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / kernel_seconds(lambda _: target.copy_(source), device, 4)


class ForwardClock:
    """Adds up the time that the target's forwards take on the device, from first to last kernel."""

    def __init__(self, target: Any, device: torch.device) -> None:
        """Measure every later forward of an engine's target."""
        self._device = device
        self._pairs: list[tuple[Any, Any]] = []
        self._seconds: list[float] = []
        self._forward = target.forward
        target.forward = self._timed

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        if self._device.type != "cuda":
            start = time.perf_counter()
            out = self._forward(*args, **kwargs)
            self._seconds.append(time.perf_counter() - start)
            return out
        pair = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        pair[0].record()
        out = self._forward(*args, **kwargs)
        pair[1].record()
        self._pairs.append(pair)  # type: ignore[arg-type] # two events
        return out

    def take(self) -> float:
        """Return the seconds since the last call of this."""
        wait(self._device)
        total = sum(a.elapsed_time(b) for a, b in self._pairs) / 1e3 + sum(self._seconds)
        self._pairs, self._seconds = [], []
        return total
