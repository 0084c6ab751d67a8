"""vLLM's target as far as a method that works on ids may use it: what is known of it, and room for a cache."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

from specdec_core.errors import TargetError
from specdec_core.sources import TargetInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specdec_nn.cache.arena import KVArena


class TokenTarget:
    """A `TargetHandle` without weights and states."""

    def __init__(self, info: TargetInfo, vllm_config: Any) -> None:
        """Take what vLLM configured; `max_num_seqs` requests of full length are the most that can run."""
        import torch

        self.info: Final = info
        self.device: Final[torch.device] = torch.device(vllm_config.device_config.device or "cpu")
        self.dtype: Final[torch.dtype] = vllm_config.model_config.dtype
        self.max_num_seqs: Final[int] = vllm_config.scheduler_config.max_num_seqs
        self._cache: Final = vllm_config.cache_config
        self._model: Final = vllm_config.model_config

    @cached_property
    def tokenizer(self) -> Any | None:
        """The tokenizer that vLLM was told to use, as transformers reads it; None if there is none."""
        from specdec_nn.hf.tokenizers import load_tokenizer, tokenizer_source

        allowed = bool(getattr(self._model, "trust_remote_code", False))  # what vLLM's own tokenizer was allowed
        source = tokenizer_source(self._model.tokenizer, self._model.tokenizer_revision)
        return load_tokenizer(replace(source, runs_code=allowed))

    @property
    def kv_cache_tokens(self) -> int:
        """Positions that all running requests may hold together; before vLLM has measured, the most there can be."""
        most = self.max_num_seqs * self.info.max_model_len
        blocks = self._cache.num_gpu_blocks
        return most if blocks is None else min(most, int(blocks) * int(self._cache.block_size))

    @property
    def embedding_weight(self) -> Tensor:
        """Not available here: raises TargetError."""
        self._refuse("embedding_weight")

    def embed(self, ids: Tensor) -> Tensor:
        """Not available here: raises TargetError."""
        self._refuse("embed")

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Not available here: raises TargetError."""
        self._refuse("compute_logits")

    def new_arena(self, num_tokens: int) -> KVArena:
        """Return a KV arena for a drafter with a cache of its own, outside of vLLM's."""
        from specdec_nn.cache.arena import KVArena

        return KVArena(num_tokens, self.device)

    def _refuse(self, what: str) -> NoReturn:
        message = (
            f"a method whose traits declare rows='none' asked for the target's {what}, which only methods that "
            "declare the rows they need can have in vLLM; tell the authors of the plugin"
        )
        raise TargetError(message)
