"""vLLM's loaded target as proposers may use it: embedding, head, and a bounded cache outside of vLLM's."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from specdec_core.errors import TargetError
from specdec_core.sources import TargetInfo
from specdec_vllm.target import TokenTarget

if TYPE_CHECKING:
    from torch import Tensor

# Of a drafter's own cache, where the user says nothing: an EAGLE head of an 8B model takes 4 kB a row.
KV_TOKENS: Final = 65536


class BoundedTarget(TokenTarget):
    """A `TargetHandle` for methods with a cache of their own, which vLLM does not know of."""

    def __init__(self, info: TargetInfo, vllm_config: Any, kv_tokens: int | None) -> None:
        """Take the positions that drafters may hold for all requests together; None: the default."""
        super().__init__(info, vllm_config)
        self._kv_tokens: Final = kv_tokens

    @property
    def kv_cache_tokens(self) -> int:
        """Positions that all running requests may hold together; at least one request of full length."""
        most = self.max_num_seqs * self.info.max_model_len
        return min(most, max(self._kv_tokens or KV_TOKENS, self.info.max_model_len))


class ModelTarget(BoundedTarget):
    """A `TargetHandle` over a model of vLLM that is held whole by this process."""

    def __init__(self, info: TargetInfo, vllm_config: Any, model: Any, kv_tokens: int | None) -> None:
        """Take the model besides."""
        super().__init__(info, vllm_config, kv_tokens)
        self._loaded: Final = model
        text = vllm_config.model_config.hf_text_config
        # Granite's decoder multiplies what its embedding gives; all other families do that in `embed_input_ids`.
        self._factor: Final = float(getattr(text, "embedding_multiplier", None) or 1.0)

    @cached_property
    def _embedding(self) -> Any:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        tables = [module for module in self._loaded.modules() if isinstance(module, VocabParallelEmbedding)]
        inputs = [table for table in tables if not isinstance(table, ParallelLMHead)]
        for table in inputs or tables:
            weight = getattr(table, "weight", None)
            if weight is not None and weight.shape[0] >= self.info.vocab_size:
                return table
        message = (
            f"{type(self._loaded).__name__} holds no embedding of {self.info.vocab_size} ids in plain rows, which this "
            "method shares with the target; use a method that does not read the target's states"
        )
        raise TargetError(message)

    @property
    def embedding_weight(self) -> Tensor:
        """Rows of the input embedding [V, H], vLLM's padding left out. Raises TargetError if there are none."""
        weight: Tensor = self._embedding.weight[: self.info.vocab_size]
        return weight

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, H] of ids [n], as the first layer gets them."""
        rows: Tensor = self._loaded.embed_input_ids(ids)
        return rows if self._factor == 1.0 else rows * self._factor

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of final hidden states [n, H], through vLLM's own head."""
        logits: Tensor = self._loaded.compute_logits(hidden)
        return logits
