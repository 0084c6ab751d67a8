"""A request and a target handle without an engine, for driving a proposer directly."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import transformers

from specdec_core.draft import IntArray
from specdec_core.host.handed import HandedRequest, KnownIds
from specdec_core.sources import TargetInfo
from specdec_nn.hf.handle import ModelHandle


class FakeRequest:
    """A `RequestView` that its owner can lengthen; `tokens` is a new read-only array after each `extend`.

    `view` is the same request as a host hands it to plugins, which can write nothing into it.
    """

    def __init__(
        self,
        name: str,
        prompt: Iterable[int],
        *,
        seq_index: int = 0,
        temperature: float = 0.0,
        seed: int | None = 0,
        extra: Any = None,
    ) -> None:
        """Start with the prompt."""
        self.id = name
        self.seq_index = seq_index
        self.sampling_params = SimpleNamespace(temperature=temperature, seed=seed, n=1, max_tokens=None)
        self.extra = extra
        self._ids = KnownIds(np.fromiter(prompt, np.int32))
        self.prompt_len = len(self._ids)
        self.view = HandedRequest(name, seq_index, self.prompt_len, self._ids, self.sampling_params, extra)

    @property
    def tokens(self) -> IntArray:
        """All known ids."""
        return self._ids.view

    def extend(self, ids: Iterable[int]) -> None:
        """Add emitted ids."""
        self._ids.append(np.fromiter(ids, np.int32))


class FakeTarget(ModelHandle):
    """A `TargetHandle` around a model that is never run as a whole: embeddings, head and limits only."""

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        tokenizer: Any | None = None,
    ) -> None:
        """Keep the model."""
        super().__init__(model, target_info(model, max_model_len), tokenizer, max_num_seqs=max_num_seqs)


def target_info(model: transformers.PreTrainedModel, max_model_len: int | None = None) -> TargetInfo:
    """Return what a host knows of a target; without a limit of the host, the model's own holds."""
    return TargetInfo.from_config(None, model.config.to_dict(), max_model_len)
