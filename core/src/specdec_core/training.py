"""What training a head takes: what a method's plugin tells, what a trainer is given, and what it does; torch-free.

A tool such as `specdec train` keeps the data, the order of the batches, the optimizer, checkpoints and progress. A
trainer knows one kind of head: its weights, the loss of a batch, what the head would draft, and its files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from specdec_core.config.speculative import MethodOptions
    from specdec_core.sources import TargetHandle, TargetInfo

Options = TypeVar("Options", bound="MethodOptions", covariant=True)


class TrainingRequest(Protocol):
    """A prompt with the target's answer; row i of the states is the one after reading ids[0 .. i]. n ids, width H."""

    @property
    def ids(self) -> Tensor:
        """[n] int64."""

    @property
    def prompt(self) -> int:
        """How many of the ids are the prompt; the target wrote the others."""

    @property
    def last(self) -> Tensor:
        """[n, H] the target's last state, after its final norm: what its head reads."""

    @property
    def aux(self) -> Tensor:
        """[n, A * H] the residual stream after each of `TrainerBuild.aux_layers` layers, side by side."""


class TrainingData(Protocol):
    """The requests that a head is trained on, and those that it is measured on."""

    def requests(self, held_out: bool = False) -> Sequence[TrainingRequest]:
        """Return the requests of either kind, always in the same order; states are read when they are touched."""


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """Requests, or windows of long ones, packed into S lanes of L rows; every batch of a run has the same shape.

    ids        [S, L] int64, 0 in padding
    positions  [S, L] int64 position of the id in its request, 0 in padding
    request    [S, L] int64 number of the window within the batch, -1 in padding; rows of one number are neighbours
    written    [S, L] bool: the target wrote the id
    last       [S, L, H] the target's last state after reading the id; zeros in padding
    aux        [S, L, A * H] its states at the aux layers, side by side; zeros in padding
    """

    ids: Tensor
    positions: Tensor
    request: Tensor
    written: Tensor
    last: Tensor
    aux: Tensor


@dataclass(frozen=True, kw_only=True)
class TrainerBuild(Generic[Options]):
    """What a trainer is made of.

    method      the method's name
    options     an instance of `HeadTraining.options`
    target      embedding, head and limits of the loaded target; its `info` has config.json
    weights     all tensors of the target by their names in transformers' model, not to be written
    data        what it is trained on; the same when a run is resumed
    aux_layers  R_k indices of the states in `aux`, ascending: the residual stream after k decoder layers
    seed        what random numbers are to be drawn from
    """

    method: str
    options: Options
    target: TargetHandle
    weights: Mapping[str, Tensor]
    data: TrainingData
    aux_layers: tuple[int, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class TrainedHead:
    """A head as it is written: config.json, and the tensors of model.safetensors by name, on the CPU."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


@runtime_checkable
class Trainer(Protocol):
    """Trains one head. What it computes depends on its module, the batch and `progress` alone, so that runs resume."""

    @property
    def module(self) -> nn.Module:
        """All that training changes, and what was measured once on the data: the state of its state_dict is resumed."""

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Return groups of parameters, as optimizers take them: "params", "scale" and "orthogonal".

        "scale" is a factor of the learning rate, 1 where it is left out. "orthogonal" is whether the group's matrices
        map hidden states to hidden states, so that an optimizer may orthogonalize their updates (Muon); it is False
        where it is left out, as for output heads and embeddings.
        """

    def loss(self, batch: TrainingBatch, progress: float) -> Tensor:
        """Return the loss of a batch, a number with a gradient; `progress` goes from 0 to 1 in the course of a run."""

    def drafts(self, batch: TrainingBatch) -> Tensor:
        """Return [S, L, D] int64: what the head drafts from each row, where the text up to each place is the batch's.

        Entry d of row i is drafted for the id d + 2 rows behind it: the last state is that of row i, the newest id
        that of row i + 1, and the drafts before it were accepted. -1 where these rows are not all of one window.
        """

    def head(self) -> TrainedHead:
        """Return the head as it is now, in a layout that the method's own proposer reads."""


@runtime_checkable
class HeadTraining(Protocol):
    """How heads of a method are trained, as `specdec_make_trainer` tells; nothing here needs torch but `make`."""

    @property
    def options(self) -> type[MethodOptions]:
        """The model of what can be chosen; every field has a default and a description."""

    def aux_layers(self, target: TargetInfo) -> tuple[int, ...]:
        """Return R_k indices of the states that data must have, ascending; () where the last state is enough."""

    def make(self, build: TrainerBuild[Any]) -> Trainer:
        """Make a trainer, in the state before the first step. Raises ConfigError for what cannot be trained."""
