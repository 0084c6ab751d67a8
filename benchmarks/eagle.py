"""Times the drafter of `eagle3` beside its target: one step of a head of SmolLM2's shape against one plain step.

    python benchmarks/eagle.py --draft-vocab 8192

The head is random, so its drafts are bad; what a step costs does not depend on that. Target and drafter take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from transformers import AutoConfig

from specdec_engine import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

LENGTHS = (1, 8)  # of drafts: what the second has more, by tokens, is one step of the drafter


def random_head(folder: Path, target: Any, draft_vocab: int) -> str:
    """Write an EAGLE-3 head with the target's widths, and return its folder."""
    generator = torch.Generator().manual_seed(0)
    width, heads, kv_heads = target.hidden_size, target.num_attention_heads, target.num_key_value_heads
    dims, inner = width // heads, target.intermediate_size

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).bfloat16()

    shapes = {
        "fc": (width, 3 * width),
        "midlayer.self_attn.q_proj": (heads * dims, 2 * width),
        "midlayer.self_attn.k_proj": (kv_heads * dims, 2 * width),
        "midlayer.self_attn.v_proj": (kv_heads * dims, 2 * width),
        "midlayer.self_attn.o_proj": (width, heads * dims),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "lm_head": (draft_vocab, width),
    }
    tensors = {f"{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    for name in ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = torch.ones(width, dtype=torch.bfloat16)
    tensors["d2t"] = torch.arange(draft_vocab) * (target.vocab_size // draft_vocab) - torch.arange(draft_vocab)
    save_file(tensors, folder / "model.safetensors")
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "rms_norm_eps")
    config = {key: getattr(target, key) for key in keys} | {"draft_vocab_size": draft_vocab}
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    return str(folder)


class Clock:
    """Median times of two methods of one engine's parts, in milliseconds."""

    def __init__(self, llm: LLM) -> None:
        """Measure every later step of the engine."""
        self.times: dict[str, list[float]] = {"propose": [], "forward": []}
        # With a method there is a runner, which the type leaves open.
        for part, owner in (("propose", llm._engine.runner._proposer), ("forward", llm._engine.target)):  # type: ignore[union-attr]
            setattr(owner, part, self._timed(part, getattr(owner, part)))

    def _timed(self, part: str, call: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments)
            self.times[part].append(1e3 * (time.perf_counter() - start))
            return result

        return timed

    def median(self, part: str, skip: int = 5) -> float:
        """Return the median without the first calls, which take the prompt in and compile."""
        return statistics.median(self.times[part][skip:])


def measure(model: str, head: str, k: int, tokens: int, extra: dict[str, Any]) -> Clock:
    """Return the times of one engine that drafts k tokens a step."""
    config = {"method": "eagle3", "model": head, "num_speculative_tokens": k, **extra}
    with LLM(model, speculative_config=config, max_model_len=2048) as llm:
        clock = Clock(llm)
        llm.generate([list(range(100, 150))], SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
        return clock


def plain_step(model: str, head: str, tokens: int) -> float:
    """Return the median of a forward of one row."""
    config = {"method": "eagle3", "model": head, "num_speculative_tokens": 1}
    with LLM(model, speculative_config=config, max_model_len=2048) as llm:
        clock = Clock(llm)
        off = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, extra_args={"specdec": {"off": True}})
        llm.generate([list(range(100, 150))], off)
        return clock.median("forward")


def main(
    draft_vocab: Annotated[int, typer.Option(help="Ids of the head.")] = 8192,
    tokens: Annotated[int, typer.Option(help="Tokens an engine answers with.")] = 48,
    repeats: Annotated[int, typer.Option(help="Rounds over all arms.")] = 3,
    out: Annotated[Path, typer.Option(help="JSON with all figures.")] = Path("benchmarks/results/eagle.json"),
) -> None:
    """Print and write the time of a drafter step, and its share of a plain step of the target."""
    model = str(model_folder())
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        head = random_head(Path(folder), AutoConfig.from_pretrained(model, trust_remote_code=False), draft_vocab)
        for _ in range(repeats):
            plain = plain_step(model, head, tokens)
            short, long = (measure(model, head, k, tokens, {}).median("propose") for k in LENGTHS)
            tree = measure(model, head, 16, tokens, {"tree_top_k": 4, "tree_depth": 4})
            rounds.append(
                {
                    "plain_step_ms": plain,
                    "propose_1_ms": short,
                    "propose_8_ms": long,
                    "drafter_step_ms": (long - short) / (LENGTHS[1] - LENGTHS[0]),
                    "share_of_plain_step": (long - short) / (LENGTHS[1] - LENGTHS[0]) / plain,
                    "dynamic_tree_of_16_ms": tree.median("propose"),
                    "forward_of_17_rows_ms": tree.median("forward"),
                }
            )
    table = Table("figure", "median", "least", "most")
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        table.add_row(name, *(f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))))
    Console().print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"draft_vocab": draft_vocab, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    typer.run(main)
