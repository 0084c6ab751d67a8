"""The subcommand `specdec generate`: complete prompts from the command line; torch is imported when it runs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_core.cli.output import emit
from specdec_core.cli.subcommand import of_function, run
from specdec_core.config.json_hints import quoting_hint
from specdec_core.errors import RequestError
from specdec_engine import cli_options as options
from specdec_engine.text.prompt_files import read_prompts

if TYPE_CHECKING:
    from specdec_engine.llm import LLM
    from specdec_engine.outputs import Logprobs, RequestOutput
    from specdec_engine.reporting.speed import Speed
    from specdec_engine.sampling_params import SamplingParams

HELP = "Complete prompts with a Hugging Face model, with or without speculation."
DEFAULTS = {"max_tokens": 128, "temperature": 0.0}


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments and return its exit code.

    Raises RequestError for arguments that do not fit, like any other SpecdecError for what then goes wrong.
    """
    return run(of_function(generate, HELP), args, "generate")


def generate(
    model: options.Model,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="File with a prompt a line, or .jsonl with 'prompt' or 'turns' in each object.")
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config", "-sc", help="JSON, @file.json or @file.yaml, vLLM's keys; or -sc.KEY VALUE."
        ),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens for a prompt; 128 if left out.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy, and what it is if left out.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of each prompt's noise.")] = None,
    sampling_params: Annotated[
        str | None, typer.Option(help='Any field of SamplingParams, as JSON: \'{"top_p": 0.9, "stop": ["END"]}\'.')
    ] = None,
    chat: options.Chat = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    decode_width: Annotated[
        int | None, typer.Option(help="Fixed number of rows of every decode forward, for bit-identical tokens.")
    ] = None,
    max_model_len: options.MaxModelLen = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    lora: Annotated[
        str | None, typer.Option(help="A LoRA adapter for all prompts: a folder of peft, or a hub id.")
    ] = None,
    plugin: options.Plugin = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it comes.")] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Decode plainly, too, and compare; exit code 1 if a difference is a fault."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a prompt.")] = False,
    record: Annotated[
        Path | None, typer.Option(help="Write the ids of prompts and answers to this file, for `specdec replay`.")
    ] = None,
    record_top: Annotated[
        int | None,
        typer.Option(min=1, help="Record the N likeliest ids of each place as well, for methods that learn from them."),
    ] = None,
) -> int:
    """Read the prompts, build the engine, print what it answers."""
    if compare and speculative_config is None:
        message = "--compare needs --speculative-config: without it there is nothing to compare with plain decoding"
        raise RequestError(message)
    if stream and as_json:
        message = "--stream and --json exclude each other: JSON is printed once a prompt has finished"
        raise RequestError(message)
    if record is not None and not record.absolute().parent.is_dir():
        message = f"--record {record}: there is no folder {str(record.parent)!r}"
        raise RequestError(message)
    if record_top is not None and record is None:
        message = "--record-top needs --record: without it nothing is written"
        raise RequestError(message)
    texts = read_prompts(prompt, prompts)
    params = _params(sampling_params, {"max_tokens": max_tokens, "temperature": temperature, "seed": seed})
    if record_top is not None:
        params = replace(params, logprobs=max(record_top, params.logprobs or 0))
    from specdec_engine import LLM
    from specdec_engine.reporting.speed import Speed, record_outputs, write_speeds

    with LLM(
        model,
        speculative_config,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        decode_width=decode_width,
        revision=revision,
        trust_remote_code=trust_remote_code,
        lora=lora,
        plugins=read_plugins(plugin),
    ) as llm:
        inputs = llm.chat_prompts([[{"role": "user", "content": text}] for text in texts]) if chat else list(texts)
        speeds = [Speed("speculation" if speculative_config else "plain")]
        with speeds[0].timed():
            if stream:
                outputs = [_stream(llm, text, one, params) for text, one in zip(texts, inputs, strict=True)]
            else:
                outputs = llm.generate(inputs, params)
        speeds[0].count(outputs)
        verdicts: Sequence[str | None] = [None] * len(outputs)
        if compare:
            speeds.append(Speed("plain"))
            verdicts = _compare(llm, inputs, outputs, params, decode_width, speeds[1])
        if record is not None:
            record_outputs(record, outputs, llm, params, model, record_top)
        for text, output, verdict in zip(texts, outputs, verdicts, strict=True):
            _print(text, output, verdict, speculative_config is not None, streamed=stream, as_json=as_json)
    write_speeds(speeds)
    return int(any(verdict is not None and verdict.endswith("fault") for verdict in verdicts))


def _params(text: str | None, options: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters that JSON and options give; what neither gives has the defaults of this command."""
    from specdec_engine.sampling_params import SamplingParams, StructuredOutputsParams

    given = {name: value for name, value in options.items() if value is not None}
    try:
        data = {} if text is None else json.loads(text)
    except ValueError as error:
        message = f"--sampling-params is not valid JSON: {error}{quoting_hint(text or '')}"
        raise RequestError(message) from error
    _check_keys(data, SamplingParams, "--sampling-params")
    if twice := sorted(set(given) & set(data)):
        message = f"--sampling-params sets {twice[0]!r}, and so does an option: leave one out"
        raise RequestError(message)
    if data.get("n", 1) != 1:
        message = "--sampling-params: n must be 1, for one answer a prompt is printed"
        raise RequestError(message)
    if isinstance(biases := data.get("logit_bias"), dict):  # keys of JSON are texts
        data["logit_bias"] = {int(key) if key.isdecimal() else key: value for key, value in biases.items()}
    if (form := data.get("structured_outputs")) is not None:
        _check_keys(form, StructuredOutputsParams, "--sampling-params, structured_outputs")
        data["structured_outputs"] = StructuredOutputsParams(**form)
    return SamplingParams(**{**DEFAULTS, **data, **given})


def _check_keys(data: Any, kind: type[Any], where: str) -> None:
    names = [field.name for field in fields(kind)]
    if not isinstance(data, dict):
        message = f"{where}: expected a JSON object, got {data!r}"
        raise RequestError(message)
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            message = f"{where} has the key {key!r}, which is none of {kind.__name__}" + (
                f"; did you mean {near[0]!r}?" if near else ""
            )
            raise RequestError(message)


def read_plugins(values: list[str] | None) -> dict[str, str]:
    """Return the files of `--plugin NAME=FILE` by name. Raises RequestError."""
    pairs = [value.partition("=") for value in values or ()]
    for name, equals, path in pairs:
        if not (name and equals and path):
            message = f"--plugin {name + equals + path!r}: expected NAME=./mine.py"
            raise RequestError(message)
    return {name: path for name, _, path in pairs}


def _stream(llm: LLM, text: str, prompt: Any, params: SamplingParams) -> RequestOutput:
    shown = 0
    last = None
    print(f"> {text}")
    for last in llm.stream(prompt, params):
        print(last.outputs[0].text[shown:], end="", flush=True)
        shown = len(last.outputs[0].text)
    print()
    assert last is not None
    return last


def _compare(
    llm: LLM,
    prompts: list[Any],
    outputs: list[RequestOutput],
    params: SamplingParams,
    decode_width: int | None,
    speed: Speed,
) -> list[str]:
    """Decode the same prompts plainly on the same weights; return where the outputs part, if they do."""
    from specdec_engine import LLM

    plain_engine = LLM(
        hf_model=llm.model,
        tokenizer=llm.tokenizer,
        decode_width=decode_width,
        max_model_len=llm.max_model_len,
    )
    with plain_engine as plain:
        with speed.timed():
            answers = plain.generate(prompts, params)
        speed.count(answers)
        return [str(plain.compare(a, b, params) or "identical") for a, b in zip(answers, outputs, strict=True)]


def _plain(entry: Logprobs) -> dict[int, dict[str, Any]]:
    return {token: asdict(logprob) for token, logprob in entry.items()}


def _print(
    text: str, output: RequestOutput, verdict: str | None, speculative: bool, *, streamed: bool, as_json: bool
) -> None:
    answer = output.outputs[0]
    if as_json:
        data: dict[str, Any] = {
            "text": answer.text,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "metrics": output.metrics.as_json(),
        }
        if answer.logprobs is not None:
            data["logprobs"] = [_plain(entry) for entry in answer.logprobs]
        if output.prompt_logprobs is not None:
            data["prompt_logprobs"] = [None if entry is None else _plain(entry) for entry in output.prompt_logprobs]
        if verdict is not None:
            data["compare"] = verdict
        emit(json.dumps(data))
        return
    if not streamed:
        print(f"> {text}\n{answer.text}")
    metrics = output.metrics
    drafts = f", {metrics.accepted} of {metrics.drafted} drafts accepted" if speculative else ""
    print(f"[{len(answer.token_ids)} tokens, {answer.finish_reason}; {metrics.steps} steps{drafts}]")
    if verdict is not None:
        print(f"[against plain decoding: {verdict}]")
