"""A head's weights by canonical name, on the target's device and in its dtype; it knows no method."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

from specdec_core.registry.kernels import Kernels
from specdec_core.sources import TargetHandle
from specdec_nn.checkpoints.fp8 import block_size, dequantized
from specdec_nn.checkpoints.reader import CheckpointReader
from specdec_nn.checkpoints.vocabulary import pick_embedding
from specdec_nn.checkpoints.weights import read_tensors
from specdec_nn.layers.block import Linear, RMSNorm

EMBEDDING: Final = "embed_tokens.weight"
HEAD: Final = "lm_head"


class HeadWeights:
    """The tensors of one checkpoint.

    stored  tensors as they are in the file, by canonical name, on the CPU; FP8 weights are dequantized
    """

    def __init__(
        self,
        reader: CheckpointReader[Any],
        target: TargetHandle,
        kernels: Kernels,
        names: Iterable[str] | None = None,
    ) -> None:
        """Read the tensors of these canonical names, or all.

        Raises ConfigError listing every weight and bias that is not in floating point.
        """
        self._target, self._kernel = target, kernels.get("linear", target.device)
        self.device, self.dtype = target.device, target.dtype
        self.vocab_size = target.info.vocab_size
        wanted = reader.files.keys() if names is None else {name for name in names if name in reader}
        reader.expect_floats(wanted)
        reader.raise_problems()
        files = {reader.files[name] for name in wanted} | {
            reader.scales[name] for name in wanted & reader.scales.keys()
        }
        read = read_tensors(reader.source, files.__contains__)
        size = block_size(reader.config)
        self.stored: dict[str, Tensor] = {}
        for name in sorted(wanted):
            tensor, scale = read[reader.files[name]], read.get(reader.scales.get(name, ""))
            if scale is not None:
                tensor = dequantized(reader.files[name], tensor, scale, size)
            self.stored[name] = tensor

    def __contains__(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor of this canonical name."""
        return name in self.stored

    def get(self, name: str, rows: Tensor | int | None = None) -> Tensor:
        """Return a tensor, or only these rows of it; of a number, at most the first so many."""
        tensor = self.stored[name]
        return (tensor if rows is None else tensor[:rows] if isinstance(rows, int) else tensor[rows]).to(
            self.device, self.dtype
        )

    def find(self, name: str) -> Tensor | None:
        """Return a tensor, None if the checkpoint has none of that name."""
        return self.get(name) if name in self.stored else None

    def norm(self, name: str, eps: float) -> RMSNorm:
        """Return the norm with a weight of that name."""
        return RMSNorm(self.get(name), eps)

    def linear(self, name: str, rows: Tensor | int | None = None) -> Linear:
        """Return the linear of `name`.weight, with `name`.bias if there is one, whatever config.json has of biases."""
        bias = f"{name}.bias"
        return Linear(
            self.get(f"{name}.weight", rows), self.get(bias, rows) if bias in self.stored else None, self._kernel
        )

    def stacked(self, names: Iterable[str], bias: str | None = None) -> Linear:
        """Return linears as one, whose outputs stand side by side; `names` and `bias` are those of whole tensors."""
        weight = torch.cat([self.get(name) for name in names])
        return Linear(weight, None if bias is None else self.get(bias), self._kernel)

    def layer(self, number: int) -> dict[str, Tensor]:
        """Return the tensors of a layer by their names inside it."""
        prefix = f"layers.{number}."
        return {name.removeprefix(prefix): self.get(name) for name in self.stored if name.startswith(prefix)}

    def embedding(self, share: bool | None, logger: logging.Logger) -> Tensor:
        """Return the head's own embedding [n, H_d] if it has one that differs, else the target's [V, H]."""
        return pick_embedding(self.find(EMBEDDING), self._target.embedding_weight, share, logger)

    def logits(self, divisor: float = 1.0) -> Callable[[Tensor], Tensor]:
        """Return what makes logits [N, V_d] of states [N, H_d] / divisor: the head's own lm_head, or the target's.

        Rows of padding beyond the target's ids are cut, since they must never be drafted.
        """
        if f"{HEAD}.weight" not in self.stored:
            return self._target.compute_logits  # it divides by itself
        own, vocabulary = self.linear(HEAD), self._target.info.vocab_size
        if len(self.stored[f"{HEAD}.weight"]) <= vocabulary and divisor == 1.0:
            return own
        return lambda states: own(states / divisor if divisor != 1.0 else states)[:, :vocabulary]

    def offsets(self) -> Tensor | None:
        """Return what to add to draft ids, [V_d] int64; None where they are the target's."""
        d2t = self.stored.get("d2t")
        if d2t is None or (len(d2t) >= self._target.info.vocab_size and not bool(d2t.any())):
            return None
        return d2t.to(self.device, torch.int64)

    def first_ids(self, rows: int) -> Tensor | None:
        """Return the offsets of a head that knows the target's first `rows` ids, None if it knows all."""
        is_whole = rows >= self._target.info.vocab_size
        return None if is_whole else torch.zeros(rows, dtype=torch.int64, device=self.device)
