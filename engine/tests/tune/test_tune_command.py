"""`specdec tune` from the outside: a drafter that knows the answers is chosen, one that is never right is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from words import model_folder

from specdec_engine import LLM, SamplingParams
from specdec_testing.commands import run_specdec

TEXTS = ["the cat", "a hat and a hat", "the mat the mat", "on the mat"]
TOKENS = 40
DRAFTER = '''
"""Drafts what a file knows of each prompt's answer, after a while."""

import time

from specdec_core import hookimpl
from specdec_core.draft import Draft

KNOWN = {known!r}
SECONDS = {seconds!r}


class Drafter:
    def start(self, request): ...

    def propose(self, batch):
        time.sleep(SECONDS)
        rows = []
        for request, most in zip(batch.requests, batch.max_draft):
            answer = KNOWN.get(tuple(request.tokens[: request.prompt_len].tolist()), [])
            rows.append(answer[len(request.tokens) - request.prompt_len :][: int(most)])
        return Draft.of(rows)

    def finish(self, request, reason): ...

    def close(self): ...


@hookimpl
def specdec_make_proposer(ctx):
    return Drafter()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[tuple[int, ...], list[int]]:
    with LLM(str(folder)) as llm:
        outputs = llm.generate(TEXTS, SamplingParams(temperature=0.0, max_tokens=TOKENS), use_tqdm=False)
    return {tuple(output.prompt_token_ids): list(output.outputs[0].token_ids) for output in outputs}


def tune(folder: Path, tmp_path: Path, known: dict[Any, Any], seconds: float, *more: str) -> Any:
    (tmp_path / "mine.py").write_text(DRAFTER.format(known=known, seconds=seconds))
    (tmp_path / "prompts.txt").write_text("\n".join(TEXTS))
    return run_specdec(
        "tune",
        folder,
        "--prompts",
        tmp_path / "prompts.txt",
        "--methods",
        '{"method": "mine"}',
        "--plugin",
        f"mine={tmp_path / 'mine.py'}",
        "--max-tokens",
        TOKENS,
        "--most-drafts",
        "8",
        "--out",
        tmp_path / "tuned",
        *more,
    )


@pytest.mark.slow
def test_a_drafter_that_knows_the_answers_is_chosen_and_the_engine_reads_what_was_written(
    folder: Path, tmp_path: Path, answers: dict[tuple[int, ...], list[int]]
) -> None:
    done = tune(folder, tmp_path, answers, 0.0, "--concurrency", "1,2")
    assert done.returncode == 0, done.stderr
    assert "use mine: k = " in done.stdout
    report = json.loads((tmp_path / "tuned/tune.json").read_text())
    assert {option["concurrency"] for option in report["options"]} == {1, 2}
    assert any(option["measured"] is not None for option in report["options"])
    config = f"@{tmp_path / 'tuned/engine.json'}"
    with LLM(str(folder), config, plugins={"mine": str(tmp_path / "mine.py")}) as llm:
        assert llm.resolved_config is not None and llm.resolved_config.method == "mine"
        (output,) = llm.generate([TEXTS[0]], SamplingParams(temperature=0.0, max_tokens=TOKENS), use_tqdm=False)
        assert output.metrics.accepted > 0
    assert json.loads((tmp_path / "tuned/vllm.json").read_text())["method"] == "specdec"


@pytest.mark.slow
def test_where_nothing_is_accepted_the_answer_is_not_to_speculate_and_older_files_go(
    folder: Path, tmp_path: Path, answers: dict[tuple[int, ...], list[int]]
) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/engine.json").write_text("{}")
    wrong = {prompt: [(token + 1) % 250 for token in answer] for prompt, answer in answers.items()}
    done = tune(folder, tmp_path, wrong, 0.01, "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert "do not speculate" in done.stdout
    assert sorted(file.name for file in (tmp_path / "tuned").iterdir()) == ["tune.json"]
    report = json.loads((tmp_path / "tuned/tune.json").read_text())
    assert report["choice"] == {"method": None, "num_speculative_tokens": {"1": 0}}
    assert all(option["predicted"]["value"] < 1 for option in report["options"])


def test_options_that_do_not_fit_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\n")
    for words, message in (
        (("--concurrency", "0"), "--concurrency '0'"),
        (("--methods", "{}"), "expected a speculative configuration"),
        (("--nonsense",), "specdec tune --help"),
    ):
        done = run_specdec("tune", tmp_path / "none", "--prompts", tmp_path / "prompts.txt", *words)
        assert done.returncode != 0 and message in done.stderr
