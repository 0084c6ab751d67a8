"""A real model answers three prompts plainly, with n-gram drafts, and with a trained head where these find nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from rich.console import Console
from rich.table import Table
from smollm2 import model_folder

from specdec_engine import LLM, SamplingParams

DECODE_WIDTH = 8
NGRAM = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
HEAD = {"model": "smollm2-135m-eagle3", "num_speculative_tokens": 3}
COMBINED = {"method": "combine", "rule": "first", "methods": [NGRAM, HEAD], "num_speculative_tokens": 7}
ARMS = {"plain": None, "n-gram": NGRAM, "n-gram + head": COMBINED}
CODE = '''def area(width, height):
    """Return the area of a rectangle."""
    result = width * height
    return result


def perimeter(width, height):
    """Return the perimeter of a rectangle."""
    result = 2 * (width + height)
    return result'''
PROMPTS = {
    "edit code": f"Rename the variable `result` to `value` in this code and write all of the code again:\n\n{CODE}",
    "use a text": (
        "The lighthouse at Cape Ferro was built in 1858 by the engineer Anna Lindqvist. Its lamp burns rapeseed oil, "
        "and its keeper climbs 214 steps every evening. In 1903 the lamp was changed to electric light. Who built the "
        "lighthouse at Cape Ferro, when, and how many steps does its keeper climb? Answer in full sentences."
    ),
    "open question": "Give three reasons why people enjoy walking in the mountains.",
}
PARAMS = SamplingParams(temperature=0.0, max_tokens=160)


@dataclass
class Answer:
    """What one arm answered.

    length  tokens emitted by a step that had drafts, on average; None where no step had any
    """

    token_ids: list[int]
    seconds: float
    length: float | None

    @property
    def speed(self) -> float:
        """Tokens per second, the prompt's pass included."""
        return len(self.token_ids) / self.seconds


def answer(llm: LLM, text: str, console: Console) -> Answer:
    """Stream one answer to the console and measure it."""
    prompt = llm.chat_prompts([{"role": "user", "content": text}])
    shown = 0
    start = perf_counter()
    for output in llm.stream(prompt, PARAMS):
        console.out(output.outputs[0].text[shown:], end="", highlight=False)
        shown = len(output.outputs[0].text)
    seconds = perf_counter() - start
    console.print()
    return Answer(output.outputs[0].token_ids, seconds, output.metrics.mean_acceptance_length)


def row(kind: str, answers: Mapping[str, Answer]) -> list[str]:
    """Return the table row of one prompt."""
    plain, *others = answers.values()
    cells = [kind, f"{plain.speed:.1f}"]
    for other in others:
        length = "-" if other.length is None else f"{other.length:.2f}"
        cells += [f"{other.speed:.1f}", f"{other.speed / plain.speed:.2f} x", length]
    same = all(other.token_ids == plain.token_ids for other in others)
    return [*cells, "[green]yes[/green]" if same else "[red]no[/red]"]


def load(folder: str) -> dict[str, LLM]:
    """Return an engine for each arm, on the same weights, its kernels compiled."""
    plain = LLM(folder, decode_width=DECODE_WIDTH)
    shared = {"decode_width": DECODE_WIDTH, "hf_model": plain.model, "tokenizer": plain.tokenizer}
    engines = {name: plain if config is None else LLM(folder, config, **shared) for name, config in ARMS.items()}
    for llm in engines.values():
        llm.generate([[1, 2, 3, 1, 2, 3, 1]], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        llm.generate([[5, 6, 7, 8]], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    return engines


def main() -> int:
    """Run the demo; the exit code is 1 if any answer differs."""
    console = Console()
    console.width = max(console.width, 112)  # the table needs the room, and logs have it
    folder = str(model_folder())
    with console.status("loading SmolLM2-135M-Instruct and compiling kernels"):
        engines = load(folder)
    columns = [column for name in ARMS if ARMS[name] for column in (f"{name}\ntok/s", "ratio", "mean\nlength")]
    table = Table("prompt", "plain\ntok/s", *columns, "identical")
    same = True
    for kind, text in PROMPTS.items():
        answers = {}
        for name, llm in engines.items():
            console.rule(f"{kind}: {name}", align="left")
            if name == "plain":
                console.print(text, style="dim", highlight=False)
            answers[name] = answer(llm, text, console)
        same &= len({tuple(each.token_ids) for each in answers.values()}) == 1
        table.add_row(*row(kind, answers))
    console.rule()
    console.print(table)
    console.print(
        "mean length: tokens emitted by a step that had drafts, the bonus token included. "
        f"Every decode forward has {DECODE_WIDTH} rows (decode_width), so that the texts agree to the bit.",
        style="dim",
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
