"""Draft checkpoints for the tiny targets of `vllm_models`, made as the tests of the methods' own plugins make them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from vllm_models import SIZES, WORDS, random_llama, save_tokenizer

ROOT = Path(__file__).parents[3]
WIDTH = SIZES["hidden_size"]
AUX = (0, 2, 4)  # of a target with 4 layers: what enters the first, the middle, and what leaves the last


def from_plugin(plugin: str, module: str) -> Any:
    """Import a support module of a plugin's tests, which lies beside no package."""
    name = f"plugin_tests_{plugin.replace('-', '_')}_{module}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "plugins" / plugin / "tests" / f"{module}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def eagle(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """An EAGLE-1 head with random weights."""
    made = from_plugin("eagle", "checkpoints")
    model = made.save(folder, made.eagle_1(width), made.config(width, vocab_size=words, bias=False))
    return {"method": "eagle", "model": model, "num_speculative_tokens": 4}


def eagle3(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """An EAGLE-3 head over three layers and half of the vocabulary."""
    made = from_plugin("eagle", "checkpoints")
    tensors = made.eagle_3(width, vocab=words, draft_vocab=words // 2)
    settings = made.config(width, vocab_size=words, draft_vocab_size=words // 2)
    settings["eagle_aux_hidden_state_layer_ids"] = list(AUX)
    return {"method": "eagle3", "model": made.save(folder, tensors, settings), "num_speculative_tokens": 4}


def medusa(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """Four Medusa heads."""
    made = from_plugin("medusa", "medusa_checkpoints")
    tensors = made.new_tensors(made.random_heads(rows=words, width=width))
    model = made.save(folder, tensors, made.new_config(hidden_size=width, vocab_size=words))
    return {"method": "medusa", "model": model, "num_speculative_tokens": 4}


def hydra(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """Three Hydra++ heads, with a prefix layer of the tiny target's sizes."""
    made = from_plugin("hydra", "hydra_checkpoints")
    heads = made.random_heads(3, 2, rows=words, width=width, prefix={**SIZES, "hidden_size": width})
    model = made.save(folder, made.tensors_of(heads, dropout=True), made.config(heads))
    return {"method": "hydra", "model": model, "num_speculative_tokens": 3}


def redrafter(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """A recurrent drafter whose best beam of three is verified."""
    made = from_plugin("redrafter", "redrafter_checkpoints")
    drafter = made.random_drafter(rows=words, width=width)
    model = made.save(folder, made.tensors_of(drafter), made.config(drafter, hidden_size=width, vocab_size=words))
    beams = {"num_beams": 3, "verified_beams": 1}
    return {"method": "redrafter", "model": model, "num_speculative_tokens": 3, **beams}


def mlp_speculator(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """An MLP speculator of three heads."""
    made = from_plugin("mlp-speculator", "mlp_speculator_checkpoints")
    tensors = made.tensors_of(made.random_weights(rows=words, width=width))
    model = made.save(folder, tensors, made.config(vocab_size=words, emb_dim=width))
    return {"method": "mlp_speculator", "model": model, "num_speculative_tokens": 3}


def lstm(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """An LSTM speculator as Arctic's trainer stores it."""
    made = from_plugin("mlp-speculator", "mlp_speculator_checkpoints")
    settings = made.lstm_config(vocab_size=words, input_hidden_dim=width)
    model = made.save(folder, made.lstm_tensors(rows=words, width=width), settings)
    return {"method": "mlp_speculator", "model": model, "num_speculative_tokens": 3}


def dflash(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """A DFlash head over what leaves the first and the last of four layers."""
    made = from_plugin("dflash", "dflash_checkpoints")
    tensors = made.trunk(width, 2 * width, seed=0) | made.vocabulary(width, words, words, seed=0)
    layers = {"dflash_config": {"target_layer_ids": [0, 3], "mask_token_id": words - 1}}
    settings = made.config(width, vocab_size=words, **layers)
    return {"method": "dflash", "model": made.save(folder, tensors, settings), "num_speculative_tokens": 4}


def dflash2(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """A DFlash2 head over what leaves the first and the last of four layers."""
    made = from_plugin("dflash", "dflash_checkpoints")
    extra = made.conv_tensors(width, seed=0) | made.selector_tensors(width, words, seed=0)
    return on_a_block(folder, width, words, extra, made.SELECTOR_KEYS, "DFlash2DraftModel")


def lilicorr(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """A LiLiCorr head over what leaves the first and the last of four layers."""
    made = from_plugin("dflash", "dflash_checkpoints")
    extra = made.lattice_tensors(width, 16, 0, heads=2, layers=2, factor=6)
    section = {**made.LATTICE_KEYS, "lilicorr_hidden_size": 16}
    return on_a_block(folder, width, words, extra, section, "LiLiCorrDraftModel")


def domino(folder: Path, width: int = WIDTH, words: int = WORDS) -> dict[str, Any]:
    """A Domino head over what leaves the first and the last of four layers."""
    made = from_plugin("dflash", "dflash_checkpoints")
    return on_a_block(folder, width, words, made.domino_tensors(width, 0, words), made.DOMINO_KEYS, "DFlashDraftModel")


def on_a_block(
    folder: Path, width: int, words: int, extra: dict[str, Any], section: dict[str, Any], architecture: str
) -> dict[str, Any]:
    """A head with tensors and keys besides those of a DFlash block."""
    made = from_plugin("dflash", "dflash_checkpoints")
    tensors = made.trunk(width, 2 * width, seed=0) | made.vocabulary(width, words, words, seed=0) | extra
    section = {"target_layer_ids": [0, 3], "mask_token_id": words - 1, **section}
    settings = made.config(width, vocab_size=words, architectures=[architecture], dflash_config=section)
    return {"method": "dflash", "model": made.save(folder, tensors, settings), "num_speculative_tokens": 4}


def draft_model(folder: Path, words: int = WORDS) -> dict[str, Any]:
    """A llama of one layer with other weights than the target's."""
    random_llama(folder, layers=1, seed=1)
    return {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 4}


def mtp_target(folder: Path) -> Path:
    """A GLM-4 with experts and one MTP module, with heads as wide as vLLM's CPU kernels want them."""
    import transformers

    made = from_plugin("mtp", "mtp_models")
    family, width = "glm4_moe", {32: 128, 64: 256, 16: 64, 8: 32}
    keys = {**made.MODELS[family].keys, "hidden_size": 128, "head_dim": 32, "max_position_embeddings": 256}
    model = transformers.AutoModelForCausalLM.from_config(transformers.Glm4MoeConfig(**keys), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(made.drawn(name, tuple(parameter.shape)))
    tensors = {}
    for name, tensor in made.module_tensors(family).items():
        inner = {32: 128} if "mlp" in name else width
        tensors[name] = made.drawn(name, tuple(inner.get(size, size) for size in tensor.shape))
    small, made.target = made.target, lambda family: model
    try:
        made.save(folder, family, tensors)
    finally:
        made.target = small
    save_tokenizer(folder, made.VOCAB)
    return folder


MTP = {"method": "mtp", "num_speculative_tokens": 4}
HEADS = {
    "eagle": eagle,
    "eagle3": eagle3,
    "medusa": medusa,
    "hydra": hydra,
    "redrafter": redrafter,
    "mlp_speculator": mlp_speculator,
    "dflash": dflash,
}
VARIANTS = {"lstm": lstm, "dflash2": dflash2, "lilicorr": lilicorr, "domino": domino}  # other heads of these methods


def perfect_eagle(folder: Path, words: int) -> dict[str, Any]:
    """An EAGLE-1 head whose distribution is that of a `vllm_models.table_llama` with so many ids, at any temperature.

    Its output is the embedding of the token, brought to the length that the target's norm gives to it.
    """
    made = from_plugin("eagle", "checkpoints")
    block = made.block(made.Weights(0), "layers.0.", WIDTH, WIDTH)
    tensors = {
        name: torch.zeros_like(tensor) if "o_proj" in name or "down_proj" in name else tensor
        for name, tensor in block.items()
    }
    tensors["fc.weight"] = torch.cat([torch.eye(WIDTH) * WIDTH**0.5, torch.zeros(WIDTH, WIDTH)], dim=1)
    model = made.save(folder, tensors, made.config(WIDTH, vocab_size=words, bias=False))
    return {"method": "eagle", "model": model, "num_speculative_tokens": 4}


def over_the_bridge(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The argument of vLLM's engine that runs a configuration of ours over the bridge."""
    rest = {key: value for key, value in config.items() if key not in ("method", "num_speculative_tokens")}
    k = config["num_speculative_tokens"]
    options = {"route": "bridge", **rest, **options}
    speculative = {"method": "specdec", "model": config["method"], "num_speculative_tokens": k, "specdec": options}
    return {"speculative_config": speculative}
