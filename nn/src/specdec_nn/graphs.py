"""Work over flat rows in fixed shapes, captured at its first use and replayed: padding, fixed addresses, and a check.

Few rows cost a GPU less than it costs the host to launch their kernels. A captured graph is launched as one; it finds
its inputs where they were when it was captured, so they are copied there, rows are padded to the next size, and the
tables of attention have room for more than there is. Padding rows are in no segment: they write no keys and no values,
and nothing sees them. What is captured and how is the caller's; nothing here knows models, heads or requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specdec_nn.cache.arena import Capture, KVArena
from specdec_nn.device_copies import no_copies
from specdec_nn.ops.attention.device_tables import TABLES, DeviceTables, Sizes
from specdec_nn.ops.attention.reference import AttentionStep

MOST_ROWS: Final = 512  # above this many rows the device has more to do than the host
LEAST_PAGES: Final = 64
TOLERANCE: Final = 1e-2  # of a replay, relative to the largest number: the same kernels ran

Work = Callable[[AttentionStep, KVArena, Sequence[Tensor]], tuple[Tensor, ...]]
Action = Callable[[], None]

logger = logging.getLogger("specdec_nn")


def rows_of(count: int) -> int:
    """Return the number of rows that so many are padded to: 1, 2, 4, then multiples of 8."""
    return next(size for size in (1, 2, 4, -(-count // 8) * 8) if size >= count)


def power_of_2(count: int) -> int:
    """Return the smallest power of two that is at least `count`; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0


def sizes_of(step: AttentionStep) -> Sizes | None:
    """Return the sizes that a step is padded to; None for steps with prompts, states or mutual rows, and for wide ones.

    Rows of a decode width stay as many as they are.
    """
    if step.states is not None or step.seg_mutual is not None or step.seg_prompt.any():
        return None
    found = Sizes.of(step)
    if not found.rows or found.rows > MOST_ROWS:
        return None
    pages = max(power_of_2(found.pages), LEAST_PAGES)
    return Sizes(
        rows=found.rows if found.exact else rows_of(found.rows),
        segments=power_of_2(found.segments),
        pages=pages,
        words=found.words,
        short=power_of_2(found.short),
        long=power_of_2(found.long),
        keys=pages * step.page_size,
        exact=found.exact,
    )


@dataclass(eq=False)
class Bucket:
    """The memory of one shape.

    inputs   at fixed addresses; `step` is one object for all steps, whose fields change
    outputs  of the work, at fixed addresses
    """

    inputs: list[Tensor]
    step: AttentionStep
    tables: DeviceTables
    outputs: tuple[Tensor, ...] = ()
    replay: Action | None = None

    @classmethod
    def of(cls, sizes: Sizes, step: AttentionStep, like: Sequence[Tensor], device: torch.device) -> Bucket:
        """Return memory for inputs of these kinds; inference tensors, as those that work is done on."""
        with torch.inference_mode():
            inputs = [part.new_zeros((sizes.rows, *part.shape[1:])) for part in like]
        return cls(inputs, replace(step), DeviceTables.empty(sizes, device))

    def fill(self, step: AttentionStep, inputs: Sequence[Tensor]) -> None:
        """Take in one step and its inputs [n, ...], n at most the bucket's rows."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own[: len(given)].copy_(given, non_blocking=True)
            own[len(given) :].zero_()
        unwritten = np.full(self.tables.sizes.rows - len(step.slots), -1, np.int32)
        padded = replace(step, slots=np.concatenate([step.slots, unwritten]))
        if padded.ancestors is not None:
            none = np.zeros((len(unwritten), padded.ancestors.shape[1]), np.int64)
            padded.ancestors = np.concatenate([padded.ancestors, none])
        self.tables.fill(padded)
        self.tables.upload()
        for part in fields(AttentionStep):
            if part.init:
                setattr(self.step, part.name, getattr(padded, part.name))
        self.step.plans.clear()
        self.step.plans[TABLES] = self.tables


class Replayed:
    """One piece of work, captured once a shape. What cannot be captured, or differs when replayed, runs as it is."""

    def __init__(self, work: Work, capture: Capture) -> None:
        """Take the work, a function of tables, the arena and inputs [N, ...], and how to capture.

        `capture` runs an action, perhaps several times, and returns what does the same again with the same memory.
        """
        self._work = work
        self._capture = capture
        self._arena: KVArena | None = None
        self._buckets: dict[Sizes, Bucket | None] = {}  # None: this shape cannot be captured

    @property
    def shapes(self) -> list[Sizes]:
        """The shapes that were captured."""
        return [sizes for sizes, bucket in self._buckets.items() if bucket is not None]

    def clear(self) -> None:
        """Forget what was captured, as when something that the work uses has moved."""
        self._buckets.clear()

    def run(self, step: AttentionStep, arena: KVArena, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the outputs of a step, padded to the rows of its shape; None where it cannot be replayed.

        They are overwritten by the next call of the same shape.
        """
        sizes = sizes_of(step)
        if sizes is None:
            return None
        if arena is not self._arena:
            self._buckets, self._arena = {}, arena
        if sizes not in self._buckets:
            self._buckets[sizes] = self._captured(sizes, step, arena, inputs)
        bucket = self._buckets[sizes]
        if bucket is None or bucket.replay is None:
            return None
        with torch.inference_mode():
            bucket.fill(step, inputs)
            bucket.replay()
        return bucket.outputs

    def _captured(self, sizes: Sizes, step: AttentionStep, arena: KVArena, inputs: Sequence[Tensor]) -> Bucket | None:
        """Capture a shape at a step that runs, and hold the replay against the work itself; None if that fails."""
        bucket = Bucket.of(sizes, step, inputs, arena.device)

        def work() -> None:
            bucket.outputs = self._work(bucket.step, arena, bucket.inputs)

        try:
            with torch.inference_mode():
                bucket.fill(step, inputs)
                work()  # layers of the arena are made, and kernels compiled
                wanted = [out[: len(inputs[0])].clone() for out in bucket.outputs]
                with no_copies():
                    bucket.replay = self._capture(work)
                bucket.fill(step, inputs)
                bucket.replay()
                reason = _difference(wanted, [out[: len(inputs[0])] for out in bucket.outputs])
        except Exception as error:  # of the driver, of a kernel, of a model's code that waits for the device
            reason = f"{type(error).__name__}: {error}"
        if not reason:
            return bucket
        logger.warning("a forward of %d rows is not captured as a graph and runs eagerly: %s", sizes.rows, reason)
        return None


def _difference(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> str:
    """Return how a replay differs from what it repeats, "" if it does not; waits for the device, once a shape."""
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        error = (mine.float() - theirs.float()).abs().max()
        largest = theirs.float().abs().max()
        if not bool(error <= TOLERANCE * largest):  # NaN as well
            return f"output {number} differs by {float(error):.3g} when it is replayed"
    return ""


def cuda_capture(device: torch.device) -> Capture:
    """Return what captures actions as graphs of a GPU, all of them in one pool of memory."""
    pool = torch.cuda.graph_pool_handle()

    def capture(action: Action) -> Action:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch has no type for it
        current = torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            action()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            action()
        replay: Action = graph.replay
        return replay

    return capture
