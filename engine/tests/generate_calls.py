"""What tests of `custom_generate` need: padded batches, calls, a criterion, a streamer, and a look at a model."""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from transformers import LlamaForCausalLM
from transformers.generation import BaseStreamer, StoppingCriteria

from specdec_engine import generate

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


STUB = {"method": "stub", "num_speculative_tokens": 4}


PAD = 1

# What this transformers calls a model's cache: `cache` from 5.24 on.
CACHE: Final = next(
    name for name in ("cache", "past_key_values") if name in inspect.signature(LlamaForCausalLM.forward).parameters
)


def batch(lengths: tuple[int, ...], *, right: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Rows of random ids, some of them repeating a phrase, padded to the longest, with the mask of what is real."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.full((len(lengths), width), PAD)
    mask = torch.zeros_like(ids)
    for i, length in enumerate(lengths):
        row = torch.randint(3, 128, (length,), generator=generator)[: length // 2 + 1].repeat(2)[:length]
        where = slice(0, length) if right else slice(width - length, width)
        ids[i, where], mask[i, where] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def ours(model: Any, config: Any = NGRAM, **kwargs: Any) -> Any:
    return model.generate(custom_generate=generate, speculative_config=config, **kwargs)


def settings(**more: Any) -> dict[str, Any]:
    return {"max_new_tokens": 20, "do_sample": False, "pad_token_id": PAD, "eos_token_id": None, **more}


def look(model: Any) -> dict[str, Any]:
    """What a caller may see of a model besides its weights."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        "training": [module.training for module in model.modules()],
        "hooks": [len(getattr(module, kind)) for module in model.modules() for kind in kinds],
        "forward": [name for name, module in model.named_modules() if "forward" in vars(module)],
        "marks": [name for name, module in model.named_modules() if "_specdec" in vars(module)],
        "attention": model.config._attn_implementation,
        "config": model.config.to_dict(),
        "generation": model.generation_config.to_dict(),
        "parameters": [(name, p.requires_grad, p.data_ptr()) for name, p in model.named_parameters()],
    }


class StopsAt(StoppingCriteria):
    """Ends rows whose ids have a sum of a kind, and notes what it was shown."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus
        self.shown: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.shown.append(input_ids[0].tolist())
        return input_ids[:, -4:].sum(dim=1) % self.modulus == 0


class Recorder(BaseStreamer):
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.puts: list[list[Any]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.puts.append(value.tolist())

    def end(self) -> None:
        self.ended += 1
