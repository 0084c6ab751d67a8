"""A target whose next-token probabilities are known exactly: a Llama that reads a row of a table by its last token."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import transformers

FloatTable = npt.NDArray[np.float64]
LOG_OF_ZERO: Final = -1000.0  # exp of it is 0 in float64 at any temperature up to 1.3; -inf times a one-hot 0 is NaN


def random_table(vocab_size: int, seed: int = 0, concentration: float = 1.0) -> FloatTable:
    """Return [V, V] rows drawn from a symmetric Dirichlet distribution; a small concentration makes peaked rows."""
    rng = np.random.default_rng(seed)
    table: FloatTable = rng.dirichlet(np.full(vocab_size, concentration), size=vocab_size)
    return table


def tempered(table: npt.ArrayLike, temperature: float) -> FloatTable:
    """Return the table [V, V] whose rows are `table`'s when sampled at a temperature: row^temperature, normalised."""
    rows = np.asarray(table, np.float64) ** temperature
    normalised: FloatTable = rows / rows.sum(axis=1, keepdims=True)
    return normalised


def joint(table: npt.ArrayLike, first: int, length: int) -> FloatTable:
    """Return the probabilities [V^length] of all texts of `length` ids after the id `first`, the last id fastest."""
    rows = np.asarray(table, np.float64)
    found: FloatTable = rows[first]
    for _ in range(length - 1):
        found = found[..., None] * rows
    flat: FloatTable = found.ravel()
    return flat


def table_target(
    table: npt.ArrayLike,
    *,
    dtype: torch.dtype = torch.float32,
    num_layers: int = 2,
    max_position_embeddings: int = 512,
    eos_token_id: int | None = None,
) -> transformers.PreTrainedModel:
    """Return a LlamaForCausalLM with p(next | text) = table[last id of the text], in eval mode on the CPU.

    `table` is [V, V], rows non-negative with sum 1. Embeddings are one-hot, attention and MLP add zero, the head holds
    the logarithms; each logit is a sum with one term that is not zero, so it does not depend on the batch or on the
    order of summation. In float32 the distribution holds to 1e-6. Ids of probability 0 are never drawn.
    """
    distribution = _checked(table)
    vocab_size = len(distribution)
    config = transformers.LlamaConfig(**_arguments(vocab_size, num_layers, max_position_embeddings, eos_token_id))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(distribution), LOG_OF_ZERO)
    scale = math.sqrt(vocab_size)  # gives an embedding mean square 1, so that norms leave it alone
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(scale * torch.eye(vocab_size))
        model.get_output_embeddings().weight.copy_(torch.from_numpy(logs.T / scale))
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
    return model.eval()


def _arguments(vocab_size: int, num_layers: int, positions: int, eos_token_id: int | None) -> dict[str, Any]:
    """Return the arguments of the configuration: width V, one head of its own width."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": vocab_size,
        "intermediate_size": 8,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-12,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }


def _checked(table: npt.ArrayLike) -> FloatTable:
    """Return the table in float64 with rows of sum 1, or raise ValueError."""
    distribution = np.asarray(table, np.float64)
    if distribution.ndim != 2 or distribution.shape[0] != distribution.shape[1] or len(distribution) < 2:
        message = f"a table of distributions is [V, V] with V >= 2, not {list(distribution.shape)}"
        raise ValueError(message)
    sums = distribution.sum(axis=1)
    if not np.isfinite(distribution).all() or distribution.min() < 0 or np.abs(sums - 1).max() > 1e-6:
        message = (
            f"rows of a table of distributions are non-negative with sum 1; sums lie in {sums.min()} .. {sums.max()}"
        )
        raise ValueError(message)
    normalised: FloatTable = distribution / sums[:, None]
    return normalised
