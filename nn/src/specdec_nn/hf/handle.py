"""A `TargetHandle` over a transformers model, for hosts that have none; runs only layers that a drafter asks for."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from specdec_core.first_layers import FirstLayers
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import TargetInfo
from specdec_core.target_keys import TargetKeys
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.hf.committed_keys import RecomputedKeys
from specdec_nn.hf.first_layers import first_layers
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import probe
from specdec_nn.hf.recomputed_layers import RecomputedLayers


class ModelHandle:
    """Embedding, head and limits of a loaded causal language model."""

    def __init__(
        self,
        model: nn.Module,
        info: TargetInfo,
        tokenizer: Any | None = None,
        *,
        max_num_seqs: int = 16,
        kv_cache_tokens: int | None = None,
    ) -> None:
        """Keep the model; without `kv_cache_tokens` there is room for all requests at full length."""
        self.model: Final = model
        self.info: Final = info
        self.tokenizer: Final = tokenizer
        self.max_num_seqs: Final = max_num_seqs
        self.kv_cache_tokens: Final = kv_cache_tokens or max_num_seqs * info.max_model_len

    @property
    def device(self) -> torch.device:
        """Device of the embedding."""
        return self.embedding_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the embedding."""
        return self.embedding_weight.dtype

    @property
    def embedding_weight(self) -> Tensor:
        """Rows of the input embedding [V, H]."""
        weight: Tensor = self._part("get_input_embeddings").weight
        return weight.detach()

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, H] of ids [n]."""
        with torch.inference_mode():
            rows: Tensor = self._part("get_input_embeddings")(ids)
        return rows

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of final hidden states [n, H], with the family's softcap if it has one."""
        with torch.inference_mode():
            logits: Tensor = self._part("get_output_embeddings")(hidden)
        cap = getattr(getattr(self.model, "config", None), "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def new_arena(self, num_tokens: int) -> KVArena:
        """Return a KV arena for a drafter."""
        return KVArena(num_tokens, self.device)

    def first_layers(self, count: int, rows: int, kernels: Kernels) -> FirstLayers:
        """Return the first layers over keys and values of their own, which this handle cannot share with its host."""
        whole = FlatModel(self.model, self.info.num_layers, self.info.vocab_size, kernels)
        probe(whole)
        part = first_layers(whole, count, kernels)
        size = DraftCache.room(self.kv_cache_tokens, self.max_num_seqs, rows)
        return RecomputedLayers(part, DraftCache(part.new_arena(size)))

    def target_keys(self, kernels: Kernels) -> TargetKeys:
        """Return keys and values of the handle's own, which it cannot share with its host: ids run a second time."""
        whole = FlatModel(self.model, self.info.num_layers, self.info.vocab_size, kernels)
        probe(whole)
        size = DraftCache.room(self.kv_cache_tokens, self.max_num_seqs, 1)
        return RecomputedKeys(whole, DraftCache(whole.new_arena(size, self.max_num_seqs)))

    def _part(self, getter: str) -> Any:
        return getattr(self.model, getter)()
