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
# Each with layers that keep states in three of four places, or in all of them.
FAMILIES: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv"] * 3 + ["full_attention"]},
    "qwen3_5": DELTA,
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 3, "num_experts": 1, "num_experts_per_tok": 1,
              "mamba_d_state": 16, "mamba_dt_rank": 32},
    "falcon_h1": {**MAMBA_2, "mamba_n_heads": 8, "mamba_d_ssm": 512},
    "bamba": {**MAMBA_2, "attn_layer_indices": [3]},
}  # fmt: skip


class Stepping:
    """An engine with one request that never ends, and drafts that are rejected."""

    def __init__(self, model: Any, k: int, *, fused: bool = False) -> None:
        """Run the prompt, and a few steps to warm up."""
        self.best = float("inf")
        config = {"method": "stub", "num_speculative_tokens": k} if k else None
        plugins = {"stub": stub_plugin(Fixed([5, 6, 7, 8, 9, 10]))}
        self.llm = LLM(hf_model=model, speculative_config=config, plugins=plugins, max_model_len=2048, fused=fused)
        self.engine = self.llm._engine
        prompt = {"prompt_token_ids": torch.arange(3, 131).tolist()}
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
    arms = {(name, drafts): Stepping(model, drafts) for name, model in models.items() for drafts in (0, k)}
    arms["attention fused", 0] = Stepping(models["attention"], 0, fused=True)
    arms["attention fused", k] = Stepping(models["attention"], k, fused=True)
    for _ in range(repeats):
        for arm in arms.values():
            arm.step()
    found: dict[str, dict[str, float]] = {}
    for (name, drafts), arm in arms.items():
        found.setdefault(name, {})["verify_ms" if drafts else "plain_ms"] = 1e3 * arm.best
        arm.llm.close()
    return found


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
    models: dict[str, Any] = {"attention": tiny_target("llama", **COMMON)}
    for family in chosen.family or FAMILIES:
        models[family] = tiny_target(family, **{**COMMON, **FAMILIES[family]})
    found: dict[str, dict[str, float]] = steps(models, chosen.k, chosen.repeats)
    for name, model in models.items():
        size = sum(p.numel() for p in model.get_decoder().parameters())
        here, there = prompts(model, chosen.prompt, max(3, chosen.repeats // 10))
        found[name] |= {"million_weights": size / 1e6, "prompt_ms": here, "transformers_prompt_ms": there}
        found[name]["prompt_ratio"] = here / there
    base = found["attention"]["verify_ms"]
    for name, row in found.items():
        row["verify_ratio"] = row["verify_ms"] / base
        print(f"{name:16}", "  ".join(f"{key} {value:.2f}" for key, value in row.items()))
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"k": chosen.k, "threads": chosen.threads, "models": found}, indent=1))


if __name__ == "__main__":
    main()
