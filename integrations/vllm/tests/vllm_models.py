"""Folders with tiny models for vLLM: a random llama, and one whose next-token probabilities are a table."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = 96
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


def save_tokenizer(folder: Path, size: int) -> None:
    """One word an id: "w0", "w1", ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1").save_pretrained(folder)


def random_llama(folder: Path, *, layers: int = 2, positions: int = 512, seed: int = 0) -> Path:
    """A llama with random weights: greedy, it soon repeats itself, so that lookup finds something."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS, num_hidden_layers=layers, max_position_embeddings=positions, eos_token_id=1, **SIZES
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # logits far apart, so that rounding never decides
        model.lm_head.weight.mul_(20)
    model.save_pretrained(folder)
    save_tokenizer(folder, WORDS)
    return folder


def table_llama(folder: Path, distribution: torch.Tensor) -> Path:
    """A llama without attention and MLP: after id i, id j follows with distribution[i, j], at temperature 1.

    distribution [V, V], V at most the hidden size less 1.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    size = len(distribution)
    config = LlamaConfig(
        vocab_size=size,
        num_hidden_layers=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
        **SIZES,
    )
    model = LlamaForCausalLM(config)
    width = config.hidden_size
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj" in name:
                weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size, width))
        # The final norm makes a unit vector of length sqrt(width) out of a row of the embedding.
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :size] = distribution.log().T / width**0.5
    model.save_pretrained(folder)
    save_tokenizer(folder, size)
    return folder
