"""Predicted outputs beside plain decoding on SmolLM2-135M (bfloat16): a right prediction, and ones that are not.

    python benchmarks/predicted.py

Each prompt asks for a piece of Python to be edited. What plain decoding answers is the right prediction; the others are
that answer with every thirtieth id replaced, and the answer to another prompt. Arms take turns in every repeat; no
prefix is reused, and a time is that of a whole call. Nothing else may run beside this.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer

from engine import edit_prompts
from specdec_engine import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))
from smollm2 import model_folder

EVERY = 30  # of a prediction with errors, the distance of replaced ids


def predictions(answers: list[list[int]], index: int) -> dict[str, list[int]]:
    """Return the predictions for one prompt, given the answers to all."""
    right = answers[index]
    errors = [(token + 7) % 1000 + 300 if at % EVERY == EVERY - 1 else token for at, token in enumerate(right)]
    return {"right": right, f"every {EVERY}th id wrong": errors, "wrong": answers[index - 1]}


def main(
    count: Annotated[int, typer.Option(help="Prompts.", min=2)] = 4,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each answer.")] = 400,
    k: Annotated[int, typer.Option(help="Drafts of a step, at most.")] = 15,
    repeats: Annotated[int, typer.Option(help="Times that everything is done.")] = 2,
    threads: Annotated[int, typer.Option(help="Threads of every arm.")] = 2,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("benchmarks/results/predicted.json"),
) -> None:
    """Run the comparison, print one line an arm, write JSON."""
    torch.set_num_threads(threads)
    folder = str(model_folder())
    plain = LLM(folder, enable_prefix_caching=False)
    config = {"method": "predicted", "num_speculative_tokens": k}
    ours = LLM(folder, config, hf_model=plain.model, tokenizer=plain.tokenizer, enable_prefix_caching=False)
    chats = [[{"role": "user", "content": text}] for _, text in edit_prompts(count)]
    prompts = [{"prompt_token_ids": prompt["prompt_token_ids"]} for prompt in plain.chat_prompts(chats)]
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    answers = [list(plain.generate(p, greedy, use_tqdm=False)[0].outputs[0].token_ids) for p in prompts]
    ours.generate(prompts[0], greedy, use_tqdm=False)
    found: dict[str, list[float]] = {}
    for repeat in range(repeats):
        for index, prompt in enumerate(prompts):
            seconds: dict[str, float] = {}
            arms = {"plain": None, **predictions(answers, index)}
            names = list(arms)
            turn = (repeat + index) % len(names)
            for name in names[turn:] + names[:turn]:
                extra = None if arms[name] is None else {"specdec": {"prediction": arms[name]}}
                params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
                llm = plain if extra is None else ours
                start = perf_counter()
                output = llm.generate(prompt, params, use_tqdm=False)[0]
                seconds[name] = perf_counter() - start
                if list(output.outputs[0].token_ids) != answers[index]:
                    message = f"prompt {index}, {name}: another answer than plain decoding's"
                    raise SystemExit(message)
            for name in names:
                found.setdefault(name, []).append(seconds["plain"] / seconds[name])
    for name, ratios in found.items():
        print(f"{name:24s} {statistics.median(ratios):.2f} x plain ({min(ratios):.2f} to {max(ratios):.2f})")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"k": k, "max_tokens": max_tokens, "over_plain": found}, indent=1))


if __name__ == "__main__":
    typer.run(main)
