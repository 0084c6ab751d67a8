"""Options that several subcommands have, each with its help; imports nothing but typer."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(help="Folder of the model, a .gguf file, or a hub id.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...")]
DecodeWidth = Annotated[int | None, typer.Option(help="Fixed number of rows of every decode forward.")]
MaxModelLen = Annotated[int | None, typer.Option(help="The most tokens of prompt and output together.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model, if it needs some.")
]
Plugin = Annotated[list[str] | None, typer.Option(help="Unpackaged plugin, NAME=./mine.py.")]
Chat = Annotated[bool, typer.Option("--chat", help="Put each prompt through the chat template.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take so many prompts, spread over the tasks.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the first prompt's noise; one more for each next.")]
