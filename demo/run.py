"""A real model answers three prompts plainly and with n-gram speculation: the same text, and how much sooner."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import perf_counter

from rich.console import Console
from rich.table import Table
from smollm2 import model_folder

from specdec_engine import LLM, SamplingParams

DECODE_WIDTH = 8
SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": DECODE_WIDTH - 1,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
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
    """What one arm answered."""

    token_ids: list[int]
    seconds: float
    steps: int
    drafts: int
    drafted: list[int]
    accepted: list[int]

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
    metrics = output.metrics
    return Answer(
        output.outputs[0].token_ids,
        seconds,
        metrics.steps,
        metrics.drafts,
        metrics.drafted_per_pos,
        metrics.accepted_per_pos,
    )


def row(kind: str, plain: Answer, spec: Answer) -> list[str]:
    """Return the table row of one prompt."""
    per_step = (sum(spec.accepted) + spec.drafts) / spec.drafts if spec.drafts else 1.0
    by_position = " ".join(
        f"{accepted / drafted:.2f}" if drafted else "-"
        for accepted, drafted in zip(spec.accepted, spec.drafted, strict=True)
    )
    same = plain.token_ids == spec.token_ids
    return [
        kind,
        f"{plain.speed:.1f}",
        f"{spec.speed:.1f}",
        f"{spec.speed / plain.speed:.2f} x",
        f"{per_step:.2f}",
        by_position or "no drafts",
        "[green]yes[/green]" if same else "[red]no[/red]",
    ]


def main() -> int:
    """Run the demo; the exit code is 1 if any answer differs."""
    console = Console()
    console.width = max(console.width, 112)  # the table needs the room, and logs have it
    folder = str(model_folder())
    with console.status("loading SmolLM2-135M-Instruct and compiling kernels"):
        plain = LLM(folder, decode_width=DECODE_WIDTH)
        spec = LLM(folder, SPECULATION, decode_width=DECODE_WIDTH, hf_model=plain.model, tokenizer=plain.tokenizer)
        for llm in (plain, spec):
            llm.generate([[1, 2, 3, 1, 2, 3, 1]], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    table = Table("prompt", "plain tok/s", "n-gram tok/s", "ratio", "mean length", "accepted by position", "identical")
    same = True
    for kind, text in PROMPTS.items():
        console.rule(f"{kind}: plain", align="left")
        console.print(text, style="dim", highlight=False)
        one = answer(plain, text, console)
        console.rule(f"{kind}: n-gram speculation", align="left")
        two = answer(spec, text, console)
        same &= one.token_ids == two.token_ids
        table.add_row(*row(kind, one, two))
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
