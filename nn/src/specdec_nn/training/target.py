"""Parts of a target that heads begin with, found by their names in transformers' models; it knows no head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_core.sources import language_config
from specdec_core.training import TrainerBuild, TrainingData
from specdec_nn.checkpoints.decoder import LAYER

_LAYER: Final = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")
CAP: Final = "final_logit_softcapping"


class TargetParts:
    """Copies in float32 of parts of a target.

    config  the language model's keys of its config.json
    """

    def __init__(self, build: TrainerBuild[Any]) -> None:
        """Keep where the tensors are."""
        self._weights, self._info = build.weights, build.target.info
        self._target = build.target
        self.config: Mapping[str, Any] = language_config(build.target.info.hf_config)

    def layer(self, number: int) -> dict[str, Tensor] | None:
        """Return the tensors of a decoder layer by their names inside it; None for one that is not Llama's.

        A layer that norms queries and keys, or has biases, is not: its weights mean something else without these.
        """
        found = {}
        for name, tensor in self._weights.items():
            match = _LAYER.fullmatch(name)
            if match and int(match[1]) == number:
                found[match[2]] = tensor.detach().float().clone()
        return found if found.keys() == {*LAYER, "input_layernorm.weight"} else None

    def final_norm(self) -> Tensor | None:
        """Return the weight [H] of the norm in front of the target's head, None where it has no such name."""
        names = [name for name in self._weights if name == "norm.weight" or name.endswith("model.norm.weight")]
        return self._weights[names[0]].detach().float().clone() if len(names) == 1 else None

    def head_rows(self, ids: Tensor) -> Tensor:
        """Return the rows [n, H] of the target's head for ids [n]; raises ConfigError for a head that is not linear."""
        names = [name for name in self._weights if name == "lm_head.weight" or name.endswith(".lm_head.weight")]
        table = self._weights[names[0]] if names else self._target.embedding_weight
        if table.shape[1] != self._info.hidden_size:
            message = f"the target's head is {list(table.shape)}, and its states have width {self._info.hidden_size}"
            raise ConfigError(message)
        return table[ids.to(table.device)].detach().float().clone()

    @property
    def cap(self) -> float | None:
        """The softcap of the target's logits, None without one."""
        cap = self.config.get(CAP)
        return None if cap is None else float(cap)


def frequent_ids(data: TrainingData, vocab_size: int, count: int) -> Tensor:
    """Return the `count` most frequent ids [count] of texts to train on, ascending; ids that are as frequent in order.

    Those that the target wrote count fully, those of prompts a quarter, since only the former are drafted.
    """
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for request in data.requests():
        ids = request.ids
        weights = torch.full((len(ids),), 0.25, dtype=torch.float64)
        weights[request.prompt :] = 1.0
        counts.index_add_(0, ids, weights)
    order = torch.argsort(counts, descending=True, stable=True)
    return order[: min(count, vocab_size)].sort().values


def scales(data: TrainingData, rows: int = 8192) -> Tensor:
    """Return the root mean square [A * H] of each dimension of `aux`, over about `rows` rows of texts to train on.

    Left out are rows at position 0, where states of many models are a thousand times as large as elsewhere.
    """
    total: Tensor | None = None
    seen = 0
    for request in data.requests():
        states = request.aux[1:].double()
        total = (states * states).sum(0) + (0.0 if total is None else total)
        seen += len(states)
        if seen >= rows:
            break
    if total is None or not seen:
        message = "there are no texts to train on; collect more"
        raise ConfigError(message)
    return (total / seen).sqrt().clamp(min=1e-6).float()
