"""What targets with recurrent layers cost: a verify step beside attention alone, prompts beside transformers.

Random models of one width and number of layers, in float32 on a CPU; arms take turns in one process, and minima count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Fixed, stub_plugin
from specdec_testing.targets import tiny_target

WIDTH, LAYERS, HEADS = 512, 4, 8
COMMON = {
    "vocab_size": 4096,
    "hidden_size": WIDTH,
    "intermediate_size": 3 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS // 2,
    "max_position_embeddings": 2048,
}
THREE_IN_FOUR = ["linear_attention"] * 3 + ["full_attention"]
DELTA = {
    "head_dim": WIDTH // HEADS,
    "layer_types": THREE_IN_FOUR,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
MAMBA_2 = {"mamba_n_heads": 16, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 64, "mamba_chunk_size": 64}
# Each with layers that keep states in three of four places, or (falcon_h1) beside the attention of all.
FAMILIES: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv"] * 3 + ["full_attention"]},
    "qwen3_5": DELTA,
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 3, "num_experts": 1, "num_experts_per_tok": 1,
              "mamba_d_state": 16, "mamba_dt_rank": 32},
    "falcon_h1": {**MAMBA_2, "mamba_n_heads": 8, "mamba_d_ssm": 512},
    "bamba": {**MAMBA_2, "attn_layer_indices": [3]},
}  # fmt: skip
# The same families with attention in all places, and MLPs that make up for the weights.
ATTENTION: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["full_attention"] * 4},
    "qwen3_5": {"layer_types": ["full_attention"] * 4},
    "jamba": {"attn_layer_period": 1, "attn_layer_offset": 0},
    "bamba": {"attn_layer_indices": [0, 1, 2, 3]},
}


class Stepping:
    """An engine with one request that never ends, and drafts that are rejected."""

    def __init__(self, model: Any, k: int) -> None:
        """Run the prompt, and a few steps to warm up."""
        self.best = float("inf")
        config = {"method": "stub", "num_speculative_tokens": k} if k else None
        plugins = {"stub": stub_plugin(Fixed([5, 6, 7, 8, 9, 10]))}
        self.llm = LLM(hf_model=model, speculative_config=config, plugins=plugins, max_model_len=2048, fused=False)
        self.engine = self.llm._engine
        prompt = {"prompt_token_ids": list(range(3, 131))}
        self.engine.submit([prompt], SamplingParams(temperature=0.0, max_tokens=1800, ignore_eos=True))
        for _ in range(6):
            self.engine.step()

    def step(self) -> None:
        """Time one step."""
        start = perf_counter()
        self.engine.step()
        self.best = min(self.best, perf_counter() - start)


def steps(models: dict[str, Any], k: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of a plain and of a verify step of each model."""
    found: dict[str, dict[str, float]] = {}
    arms = {(name, drafts): Stepping(model, drafts) for name, model in models.items() for drafts in (0, k)}
    for _ in range(repeats):
        for arm in arms.values():
            arm.step()
    for (name, drafts), arm in arms.items():
        found.setdefault(name, {})["verify_ms" if drafts else "plain_ms"] = 1e3 * arm.best
        arm.llm.close()
    return found


def weights(model: Any) -> int:
    """Return the weights of a model's layers."""
    return sum(p.numel() for p in model.get_decoder().layers.parameters())


def of_size(family: str, size: int, **settings: Any) -> Any:
    """Return a model of a family whose layers have about so many weights, by the width of its MLPs."""
    base = weights(tiny_target(family, **{**COMMON, **settings}))
    more = (size - base) // (3 * WIDTH * LAYERS) // 16 * 16
    return tiny_target(family, **{**COMMON, **settings, "intermediate_size": 3 * WIDTH + more})


def prompts(model: Any, length: int, repeats: int) -> tuple[float, float]:
    """Return the milliseconds of a prompt here and in transformers, which keeps a cache as well."""
    ids = (torch.arange(length) * 37 + 5) % 4000 + 3
    best = [float("inf")] * 2
    with LLM(hf_model=model, max_model_len=2048, prefill_chunk_size=length, enable_prefix_caching=False) as llm:
        engine, params = llm._engine, SamplingParams(temperature=0.0, max_tokens=1)

        def here() -> None:
            engine.submit([{"prompt_token_ids": ids.tolist()}], params)
            engine.step()

        def there() -> None:
            with torch.inference_mode():
                model(ids[None], use_cache=True, logits_to_keep=1)

        arms: list[Callable[[], None]] = [here, there]
        for _ in range(repeats + 1):
            for i, arm in enumerate(arms):
                start = perf_counter()
                arm()
                best[i] = min(best[i], perf_counter() - start)
    return 1e3 * best[0], 1e3 * best[1]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="may be repeated; default: all")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/hybrid.json"))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    found: dict[str, dict[str, float]] = {}
    for family in chosen.family or FAMILIES:
        hybrid = tiny_target(family, **{**COMMON, **FAMILIES[family]})
        models = {family: hybrid, f"{family} llama": of_size("llama", weights(hybrid))}
        if family in ATTENTION:
            models[f"{family} attention"] = of_size(
                family, weights(hybrid), **{**FAMILIES[family], **ATTENTION[family]}
            )
        found |= steps(models, chosen.k, chosen.repeats)
        for name, model in models.items():
            here, there = prompts(model, chosen.prompt, max(6, chosen.repeats // 6))
            row = found[name]
            row |= {
                "million_weights": weights(model) / 1e6,
                "prompt_ms": here,
                "prompt_over_transformers": here / there,
            }
            row["hybrid_verify_over_this"] = found[family]["verify_ms"] / row["verify_ms"]
            print(f"{name:18}", "  ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"k": chosen.k, "threads": chosen.threads, "models": found}, indent=1))


if __name__ == "__main__":
    main()
