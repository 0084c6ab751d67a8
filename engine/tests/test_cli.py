"""`specdec generate` from the outside: it gets a model folder and prompts, and answers in text or JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from words import model_folder

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_engine.cli import command
from specdec_testing.commands import run_specdec

NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'
MINE = '''
"""A proposer in one file: it says again what was said five ids ago."""

from specdec_core import hookimpl
from specdec_core.draft import Draft


class Again:
    def start(self, request): ...

    def propose(self, batch):
        return Draft.of([r.tokens[-5:][: int(m)] for r, m in zip(batch.requests, batch.max_draft)])

    def finish(self, request, reason): ...

    def close(self): ...


@hookimpl
def specdec_make_proposer(ctx):
    return Again()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model") / "tiny")


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What the library says: by prompt as text, and as a chat message."""
    texts, params = ["the cat", "日本", "a hat and a hat"], SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(str(folder)) as llm:
        plain = llm.generate(texts, params)
        talk = llm.chat([[{"role": "user", "content": text}] for text in texts], params)
    return {
        kind: [
            {"text": o.text, "token_ids": o.token_ids, "finish_reason": o.finish_reason}
            for o in (result.outputs[0] for result in results)
        ]
        for kind, results in (("plain", plain), ("chat", talk))
    }


def said(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: data[key] for key in ("text", "token_ids", "finish_reason")} for data in found]


def test_several_prompts_in_json_with_speculation_compared(folder: Path, answers: Any) -> None:
    prompts = ["--prompt", "the cat", "--prompt", "日本", "--prompt", "a hat and a hat"]
    done = run_specdec("generate", folder, *prompts, "-sc", NGRAM, "--max-tokens", 12, "--compare", "--json")
    found = objects(done)
    assert said(found) == answers["plain"]
    assert [data["compare"] for data in found] == ["identical"] * 3
    for data in found:
        assert set(data) == {"text", "token_ids", "finish_reason", "stop_reason", "metrics", "compare"}
        assert data["metrics"]["drafted"] >= data["metrics"]["accepted"] >= 0
        assert data["metrics"]["steps"] > 0
    assert "Traceback" not in done.stderr


def test_a_text_file_has_a_prompt_a_line(folder: Path, answers: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("the cat\n\n日本\na hat and a hat\n", encoding="utf-8")
    found = objects(run_specdec("generate", folder, "--prompts", file, "--max-tokens", 12, "--json"))
    assert said(found) == answers["plain"]
    assert set(found[0]) == {"text", "token_ids", "finish_reason", "stop_reason", "metrics"}


def test_a_jsonl_file_has_prompts_or_turns_and_chat_uses_the_template(
    folder: Path, answers: Any, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "the cat"}, {"turns": ["日本", "later"], "id": 7}, {"prompt": "a hat and a hat"}]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    arguments = ("generate", folder, "--prompts", file, "--chat", "--max-tokens", 12, "--json", "-sc", NGRAM)
    assert said(objects(run_specdec(*arguments, "--decode-width", 4))) == answers["chat"]


def test_standard_input_is_one_prompt_and_text_goes_out(folder: Path, answers: Any) -> None:
    done = run_specdec("generate", folder, "--max-tokens", 12, stdin="the cat\n")
    assert done.returncode == 0, done.stderr
    first, rest = done.stdout.split("\n", 1)
    assert first == "> the cat"
    assert rest.startswith(answers["plain"][0]["text"])
    assert "12 tokens" in rest or "stop" in rest


def test_streams_print_the_text_and_a_sampled_run_compares_as_identical(folder: Path) -> None:
    common = ("--prompt", "the cat", "--max-tokens", 15, "--temperature", 0.8, "--seed", 3)
    (quiet,) = objects(run_specdec("generate", folder, *common, "--json"))
    done = run_specdec("generate", folder, *common, "-sc", NGRAM, "--stream", "--compare")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"> the cat\n{quiet['text']}\n")
    assert "[against plain decoding: identical]" in done.stdout


def test_a_proposer_in_one_file_needs_no_package(folder: Path, answers: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    config = '{"method": "mine", "num_speculative_tokens": 2}'
    arguments = ("--plugin", f"mine={file}", "--prompt", "the cat", "--max-tokens", 12, "--json", "--compare")
    (found,) = objects(run_specdec("generate", folder, "-sc", config, *arguments))
    assert said([found]) == answers["plain"][:1]
    assert found["metrics"]["drafted"] > 0
    assert found["compare"] == "identical"


def test_any_sampling_parameter_comes_as_json(folder: Path) -> None:
    given = {"top_k": 1, "stop": [" c"], "logprobs": 1, "prompt_logprobs": 0, "logit_bias": {"67": 100.0, "68": 100.0}}
    params = SamplingParams(max_tokens=12, temperature=0.0, **{**given, "logit_bias": {67: 100.0, 68: 100.0}})
    arguments = ("--prompt", "the cat", "--max-tokens", 12, "--sampling-params", json.dumps(given), "--json")
    (found,) = objects(run_specdec("generate", folder, *arguments))
    with LLM(str(folder)) as llm:
        (result,) = llm.generate("the cat", params)
    answer = result.outputs[0]
    assert answer.logprobs is not None
    assert result.prompt_logprobs is not None
    assert said([found])[0] == {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
    }
    entries = [{str(token): asdict(logprob) for token, logprob in entry.items()} for entry in answer.logprobs]
    assert found["logprobs"] == entries
    missing = [entry is None for entry in found["prompt_logprobs"]]
    assert missing == [True] + [False] * (len(result.prompt_token_ids) - 1)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--sampling-params", "{"], "--sampling-params is not valid JSON"),
        (["--sampling-params", "[1]"], "expected a JSON object"),
        (["--sampling-params", '{"topp": 1}'], "did you mean 'top_p'"),
        (["--sampling-params", '{"structured_outputs": {"regexp": "a"}}'], "did you mean 'regex'"),
        (["--sampling-params", '{"seed": 2}', "--seed", "1"], "'seed', and so does an option"),
        (["--sampling-params", '{"n": 2}'], "n must be 1"),
        (["--sampling-params", '{"top_p": 2}'], "top_p=2"),
    ],
)
def test_bad_sampling_parameters_are_refused_before_a_model_is_looked_at(given: list[str], named: str) -> None:
    with pytest.raises(RequestError, match=re.escape(named)):
        command(["no-such-folder", "--prompt", "a", *given])


def test_the_program_answers_a_prompt_from_standard_input_like_its_entry_function(folder: Path) -> None:
    arguments = ["generate", str(folder), "--max-tokens", "12", "--json"]
    program = [sys.executable, "-m", "specdec_core", *arguments]
    done = subprocess.run(program, input="日本\n", capture_output=True, text=True, timeout=300, check=False)
    inside = run_specdec(*arguments, stdin="日本\n")
    assert said(objects(done)) == said(objects(inside))
    speed = r"\[plain: [0-9.]+ tokens/s, 12 tokens in [0-9.]+ s\]\n"
    assert re.fullmatch(speed, done.stderr) and re.fullmatch(speed, inside.stderr), "nothing else is written there"


def test_tokens_per_second_are_on_standard_error_of_both_arms_with_compare(folder: Path) -> None:
    done = run_specdec("generate", folder, "--prompt", "the cat", "-sc", NGRAM, "--max-tokens", 12, "--compare")
    assert done.returncode == 0 and "tokens/s" not in done.stdout
    lines = done.stderr.splitlines()
    arms = [re.fullmatch(r"\[(\w+): ([0-9.]+) tokens/s, 12 tokens in ([0-9.]+) s\]", line) for line in lines[:2]]
    assert [arm and arm[1] for arm in arms] == ["speculation", "plain"]
    speculation, plain = (float(arm[2]) for arm in arms if arm is not None)
    ratio = re.match(r"\[([0-9.]+) x plain in one run each", lines[2])
    assert ratio is not None and float(ratio[1]) == pytest.approx(speculation / plain, abs=0.011)


def test_help_names_every_option() -> None:
    done = run_specdec("generate", "--help")
    assert done.returncode == 0
    for option in ("--prompt", "--prompts", "--speculative-config", "--compare", "--decode-width", "--plugin"):
        assert option in done.stdout


BAD: dict[str, tuple[list[str], str]] = {
    "no prompt": ([], "standard input"),
    "both kinds of prompts": (["--prompt", "a", "--prompts", "x.txt"], "exclude"),
    "a prompt file that is not there": (["--prompts", "nowhere.txt"], "nowhere.txt"),
    "an empty prompt file": (["--prompts", "EMPTY"], "no prompts"),
    "a jsonl line that is none": (["--prompts", "LINES"], "line 2"),
    "compare without speculation": (["--prompt", "a", "--compare"], "--speculative-config"),
    "stream with json": (["--prompt", "a", "--stream", "--json"], "--json"),
    "a plugin without a path": (["--prompt", "a", "--plugin", "mine"], "NAME=./mine.py"),
    "an unknown option": (["--prompt", "a", "--warp", "9"], "--warp"),
    "a number that is none": (["--prompt", "a", "--max-tokens", "many"], "--max-tokens"),
    "config that is no json": (["--prompt", "a", "-sc", "{"], "JSON"),
    "a method that is not installed": (["--prompt", "a", "-sc", '{"method": "ngran"}'], "did you mean 'ngram'"),
    "a negative temperature": (["--prompt", "a", "--temperature", "-1"], "temperature"),
    "an unknown dtype": (["--prompt", "a", "--dtype", "int3"], "int3"),
    "an unknown device": (["--prompt", "a", "--device", "abacus"], "abacus"),
    "an empty prompt": (["--prompt", ""], "empty"),
    "a prompt longer than the context": (["--prompt", "cat " * 300], "256"),
    "a decode width of none": (["--prompt", "a", "--decode-width", "0"], "decode_width"),
    "a plugin file that is not there": (
        ["--prompt", "a", "--plugin", "mine=./nowhere.py", "-sc", '{"method": "mine", "num_speculative_tokens": 1}'],
        "nowhere.py",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_two(case: str, folder: Path, tmp_path: Path) -> None:
    arguments, named = BAD[case]
    files = {"EMPTY": "empty.txt", "LINES": "lines.jsonl"}
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "a"}\n["a"]\n')
    arguments = [str(tmp_path / files[a]) if a in files else a for a in arguments]
    done = run_specdec("generate", folder, *arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("files", "named"),
    [(None, "nothing-here"), ({}, "config.json"), ({"config.json": '{"model_type": "llama"}'}, "weights")],
)
def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_code_two(files: Any, named: str, tmp_path: Path) -> None:
    model = tmp_path / "nothing-here"
    if files is not None:
        model.mkdir()
    for name, content in (files or {}).items():
        (model / name).write_text(content)
    done = run_specdec("generate", model, "--prompt", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
