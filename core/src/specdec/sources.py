"""What is known of a draft checkpoint and of a target before and after loading; torch only for `.bin` and `.pt` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Detection:
    """A plugin's claim that a draft source is one of its methods.

    method    the method's name
    strength  "certain" (the checkpoint says so), "likely" (its tensors fit) or "possible" (nothing speaks against it)
    evidence  config.json keys and tensor names that say so, for people to read
    """

    method: str
    strength: Literal["possible", "likely", "certain"]
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Default:
    """A value for a key that the user left out, and why it is this one."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: the key it is about, what was given, what was expected, what to do."""

    key: str
    message: str
    next_step: str = ""

    def __str__(self) -> str:
        """Return one line for an error message."""
        return f"{self.key}: {self.message}" + (f" ({self.next_step})" if self.next_step else "")


@dataclass(frozen=True, kw_only=True)
class TargetSwap:
    """The pair that a draft checkpoint stands for: the target to load, and the speculative configuration."""

    model: str
    speculative_config: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True)
class TargetInfo:
    """What is known of the target without loading it.

    model              name or folder, None for a model that came as an object
    hf_config          its config.json as plain data
    vocab_size         rows of the embedding, padding included
    hidden_size        width of the hidden state
    num_layers         number of decoder layers
    max_model_len      the most positions a request may take
    tensor_parallel_size  the host's, 1 for the reference engine
    """

    model: str | None
    hf_config: Mapping[str, Any]
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int
    tensor_parallel_size: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)


class TargetHandle(Protocol):
    """The loaded target, as far as a proposer may use it."""

    @property
    def info(self) -> TargetInfo:
        """What was known before loading, with the host's limits filled in."""

    @property
    def device(self) -> torch.device:
        """Device of the target's inputs."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the target's hidden states."""

    @property
    def max_num_seqs(self) -> int:
        """The most requests that run at one time."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, H] of ids [n]."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of final hidden states [n, H], with the family's softcap and logit scale."""

    def new_arena(self, num_tokens: int) -> Any:
        """Return a KV arena of `specdec.nn` for a drafter, for that many tokens."""
