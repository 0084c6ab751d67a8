"""Whole verifications on a GPU: each row's logits are read once, and one more time where a tree ends by a draw.

Nothing waits for the device. `coupled` is two launches: stretches of the vocabulary, then a walk of each tree that
joins them. `standard` is four: what rows add up to, the walk, the race over what is left at one row of each tree, its
join. `block` has two more between, for the sums that its tests need. Under TRITON_INTERPRET=1 the same source runs on a
CPU.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
from torch import Tensor

from specdec_core.noise import Purpose
from specdec_nn.ops.draw.triton import stretches
from specdec_nn.ops.noise.triton import OPTIONS
from specdec_nn.ops.ptx import PtxCase
from specdec_plugin_verifiers.kernels.verify.growing import grow
from specdec_plugin_verifiers.kernels.verify.packing import Packed, pack
from specdec_plugin_verifiers.kernels.verify.stretches import excess_part, last_join, last_part, measure_part
from specdec_plugin_verifiers.kernels.verify.walks import block_walk, block_weigh, coupled_walk, standard_walk
from specdec_plugin_verifiers.trial import Trial

STRETCH: Final = 4096  # ids a program
WARPS: Final = 8
TILE: Final = 1024  # numbers of stretches that a walk joins together
LOOKED: Final = 2048  # ids that a walk looks at together, where it has to sum over a row


class Call:
    """The arguments of one call of a whole verification, and the memory that its kernels share."""

    def __init__(self, trial: Trial) -> None:
        """Copy the arguments to the device of the logits."""
        logits = trial.logits.detach()
        self.trial = trial
        self.logits = logits if logits.stride(1) == 1 else logits.contiguous()
        self.rows, self.vocabulary = logits.shape
        self.packed: Packed = pack(trial)
        self.trees = len(trial.forest.starts)
        if trial.parents is not None and self.trees:
            form = trial.parents, self.packed.nodes, self.packed.starts, self.packed.rows, self.rows, self.packed.kids
            size = triton.next_power_of_2(self.packed.most)
            grow[(self.trees,)](*form, NODES=size, num_warps=1 if size <= 32 else 4, **OPTIONS)
        self.parts = triton.cdiv(self.vocabulary, STRETCH)
        self.width = 2 + self.packed.depth
        self.result = self.empty(self.trees, self.width, kind=torch.int64)

    def empty(self, *shape: int, kind: torch.dtype) -> Tensor:
        """Return memory on the device."""
        return torch.empty(*shape, dtype=kind, device=self.logits.device)

    @property
    def matrix(self) -> tuple[Any, ...]:
        """The logits, their stride and the vocabulary."""
        return self.logits, self.logits.stride(0), self.vocabulary

    def sizes(self, parts: int) -> dict[str, int]:
        """Return the sizes of a walk's blocks, for rows in that many stretches, and its warps."""
        nodes, parts = triton.next_power_of_2(self.packed.most), triton.next_power_of_2(parts)
        rows = min(max(TILE // parts, 1), nodes)
        # A wave of 32 lanes needs no barriers; sums over rows, for several children that were drawn, want more threads.
        sums = self.kinds["DISTRIBUTIONS"] and not self.trial.forest.chains
        return {"NODES": nodes, "ROWS": rows, "PARTS": parts, "num_warps": WARPS if sums else 1 if nodes <= 32 else 4}

    @property
    def distributions(self) -> tuple[Any, ...]:
        """The distributions q, their stride, their sums and the column of each id; anything where there are none."""
        distributions = self.trial.distributions
        if not len(distributions.q):
            none = self.packed.kids
            return distributions.q, 0, distributions.q, none
        q = distributions.q if distributions.q.stride(1) == 1 else distributions.q.contiguous()
        return (
            q,
            q.stride(0),
            distributions.total,
            self.packed.kids if distributions.column is None else distributions.column,
        )

    @property
    def kinds(self) -> dict[str, bool]:
        """Whether there are distributions, and whether they have columns of their own."""
        return {
            "DISTRIBUTIONS": len(self.trial.distributions.q) > 0,
            "MAPPED": self.trial.distributions.column is not None,
        }


class Measures:
    """What the rows of a call add up to, and what the walks note for the draws that end their trees."""

    def __init__(self, call: Call) -> None:
        """Read all rows once."""
        kinds = (torch.float32, torch.float32, torch.int32)
        self.parts: Any = tuple(call.empty(call.rows, call.parts, kind=kind) for kind in kinds)
        self.largest = call.empty(call.rows, kind=torch.float32)
        self.rest = call.empty(call.rows, kind=torch.float64)
        draws = call.trial.draws
        self.given = draws is not None
        self.answers = call.empty(call.rows, kind=torch.int64) if draws is None else draws.to(call.logits.device)
        self.chances = call.empty(call.rows, kind=torch.float64)  # of the nodes that were tested
        self.places = call.empty(call.trees, 4, kind=torch.int64)
        self.shares = call.empty(call.trees, 4, kind=torch.float64)
        packed = call.packed
        measure_part[(call.rows, call.parts)](
            *call.matrix,
            packed.rows,
            call.rows,
            packed.kids,
            packed.tokens,
            packed.distributions,
            *self.parts,
            SIZE=STRETCH,
            num_warps=WARPS,
            **OPTIONS,
        )


def verify_coupled(trial: Trial) -> Tensor:
    """Return stops, last ids and paths, [n, 2 + depth] int64; see the reference."""
    return coupled(Call(trial))


def coupled(call: Call) -> Tensor:
    """Run the kernels of `verify_coupled`."""
    packed, trial, draws = call.packed, call.trial, call.trial.draws
    if not call.trees:
        return call.result
    if draws is None:
        draws = call.empty(call.rows, kind=torch.int64)
        _, found, parts = stretches(call.logits, packed.rows[:4], races=not trial.greedy.all())
    else:
        draws, parts = draws.to(call.logits.device, torch.int64), 1
        found = draws, draws, draws  # which are not read
    given = *found, parts, call.vocabulary, packed.rows, call.rows, packed.starts, packed.nodes, packed.tokens
    coupled_walk[(call.trees,)](
        *given, draws, call.result, call.width, GIVEN=trial.draws is not None, **call.sizes(parts), **OPTIONS
    )
    return call.result


def verify_standard(trial: Trial) -> Tensor:
    """Return stops, last ids and paths, [n, 2 + depth] int64; see the reference."""
    return standard(Call(trial))


def standard(call: Call) -> Tensor:
    """Run the kernels of `verify_standard`."""
    return _end(call, walk_standard(call)) if call.trees else call.result


def walk_standard(call: Call) -> Measures:
    """Fill in stops and paths."""
    measures, packed = Measures(call), call.packed
    standard_walk[(call.trees,)](
        *call.matrix, packed.rows, call.rows, packed.kids, packed.starts, packed.nodes, packed.tokens,
        packed.distributions, *call.distributions, *measures.parts, call.parts, int(Purpose.ACCEPT), measures.largest,
        measures.rest, measures.answers, measures.chances, measures.places, measures.shares, call.result,
        call.width,
        GIVEN=measures.given, CHAINS=call.trial.forest.chains, **call.kinds, **call.sizes(call.parts),
        SIZE=LOOKED, **OPTIONS,
    )  # fmt: skip
    return measures


def verify_block(trial: Trial) -> Tensor:
    """Return stops, last ids and paths, [n, 2 + depth] int64; see the reference."""
    return block(Call(trial))


def block(call: Call) -> Tensor:
    """Run the kernels of `verify_block`."""
    return _end(call, walk_block(call)) if call.trees else call.result


def walk_block(call: Call) -> Measures:
    """Fill in stops and paths."""
    measures, packed, (q, q_stride, totals, column) = Measures(call), call.packed, call.distributions
    inverses, kept = (call.empty(call.rows, kind=torch.float64) for _ in range(2))
    block_weigh[(call.trees,)](
        *call.matrix, packed.rows, call.rows, packed.starts, packed.nodes, packed.tokens, packed.distributions,
        q, q_stride, totals, column,
        *measures.parts, call.parts, measures.largest, measures.rest, inverses, measures.answers, kept,
        GIVEN=measures.given, **call.kinds, **call.sizes(call.parts), **OPTIONS,
    )  # fmt: skip
    distributions = call.kinds["DISTRIBUTIONS"]
    excess = call.empty(call.rows if distributions else 1, call.parts, kind=torch.float64)
    if distributions:
        excess_part[(call.rows, call.parts)](
            *call.matrix, packed.rows, call.rows, packed.kids, packed.distributions, q, q_stride, totals, column,
            measures.largest, inverses, kept, excess,
            MAPPED=call.kinds["MAPPED"], SIZE=STRETCH, num_warps=WARPS, **OPTIONS,
        )  # fmt: skip
    block_walk[(call.trees,)](
        packed.rows, call.rows, packed.starts, packed.nodes, packed.distributions, totals, excess, call.parts,
        int(Purpose.ACCEPT), measures.largest, measures.rest, inverses, measures.answers, kept,
        measures.chances, measures.places, measures.shares, call.result, call.width,
        GIVEN=measures.given, DISTRIBUTIONS=distributions, **call.sizes(call.parts), **OPTIONS,
    )  # fmt: skip
    return measures


def _end(call: Call, measures: Measures) -> Tensor:
    """Draw the ids that end trees from what is left there, and return the result."""
    packed, (q, q_stride, _, column) = call.packed, call.distributions
    scores = call.empty(call.trees, call.parts, kind=torch.float64)
    winners = call.empty(call.trees, call.parts, kind=torch.int32)
    last_part[(call.trees, call.parts)](
        *call.matrix, packed.rows, call.rows, packed.kids, packed.tokens, q, q_stride, column,
        measures.places, measures.shares, int(Purpose.TARGET), int(Purpose.RESIDUAL), scores, winners,
        **call.kinds, SIZE=STRETCH, num_warps=WARPS, **OPTIONS,
    )  # fmt: skip
    last_join[(call.trees,)](
        *call.matrix, packed.rows, call.rows, measures.places, measures.shares, int(Purpose.RESIDUAL),
        scores, winners, call.parts, call.result, call.width,
        PARTS=triton.next_power_of_2(call.parts), SIZE=LOOKED, **OPTIONS,
    )  # fmt: skip
    return call.result


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    integers = "table kids tokens distributions starts nodes column draws answers places result"
    floats = "scores rest inverses kept chances shares excess totals"
    kinds = {"*bf16": "logits", "*i64": integers, "*i32": "winners parents", "*fp64": floats}
    kinds["*fp32"] = "q tops sums largest"
    walk = {"NODES": 8, "ROWS": 8, "PARTS": 32}

    def case(kernel: Any, warps: int, constants: dict[str, Any], label: str = "") -> PtxCase:
        own = {name: kind for kind, names in kinds.items() for name in names.split() if name in kernel.arg_names}
        if kernel is excess_part:
            own["sums"] = "*fp64"
        types = {kind: " ".join(name for name, of in own.items() if of == kind) for kind in {*own.values()}}
        return PtxCase(kernel, types, constants, {**OPTIONS, "num_warps": warps}, label=label)

    drawn, sure = {"DISTRIBUTIONS": True, "MAPPED": True}, {"DISTRIBUTIONS": False, "MAPPED": False}
    part, tree = {"SIZE": STRETCH}, {"NODES": 64, "ROWS": 32, "PARTS": 32}
    sums = {"SIZE": LOOKED}
    return [
        case(measure_part, WARPS, part),
        case(excess_part, WARPS, {"MAPPED": True, **part}),
        case(last_part, WARPS, {**sure, **part}, "point masses"),
        case(last_part, WARPS, {**drawn, **part}, "drawn"),
        case(last_join, 4, {"PARTS": 32, **sums}),
        case(grow, 4, {"NODES": 64}),
        case(coupled_walk, 1, {"GIVEN": False, **walk}),
        case(standard_walk, 1, {"GIVEN": False, "CHAINS": True, **sure, **walk, **sums}, "chains"),
        case(standard_walk, WARPS, {"GIVEN": True, "CHAINS": False, **drawn, **tree, **sums}, "drawn trees"),
        case(block_weigh, 1, {"GIVEN": False, **drawn, **walk}),
        case(block_walk, 1, {"GIVEN": False, "DISTRIBUTIONS": True, **walk}),
    ]
