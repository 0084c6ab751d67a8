"""`specdec bench` from the outside: what it compares, in which order, what it keeps, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench_runs import EVIL, METHODS, NGRAM, QUESTIONS, SUFFIX, bench, question_file
from words import model_folder

from specdec_engine import SamplingParams
from specdec_engine.bench import measure as measuring
from specdec_engine.bench.advice import advice
from specdec_engine.bench.arms import ModelOptions, build_arm, load_plain
from specdec_engine.bench.methods import Method
from specdec_engine.bench.prompts import BenchPrompt, load_prompts, units_of
from specdec_engine.bench.rows import TIMES

LIAR = '''
"""A verifier that accepts whatever is drafted, and says that this changes nothing."""

import numpy as np

from specdec_core import hookimpl
from specdec_core.draft import Verdict


class Liar:
    def verify(self, draft, logits, noise, target_draws, greedy):
        lengths = np.array(draft.lengths, np.int32)
        emitted, rows, path, at = [], [], [], 0
        for begin, n in zip(np.cumsum(lengths) - lengths, lengths):
            emitted += [*draft.tokens[begin : begin + n].tolist(), int(target_draws[at + n])]
            rows += range(at, at + n + 1)
            path += range(n)
            at += n + 1
        return Verdict(lengths, *(np.array(each, np.int32) for each in (path, emitted, rows)))


@hookimpl
def specdec_make_verifier(method):
    return Liar()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return question_file(tmp_path_factory.mktemp("questions"))


@pytest.fixture(scope="module")
def whole(folder: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One uninterrupted run over all methods: what it printed, and the file that it wrote."""
    file = tmp_path_factory.mktemp("whole") / "out.json"
    done = bench(folder, questions, "--concurrency", "2,1", "--json", file)
    assert done.returncode == 0, done.stderr
    return {"printed": done.stdout, "file": file, **json.loads(file.read_text())}


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def test_every_arm_answers_every_prompt_at_every_concurrency_with_plains_ids(whole: Any) -> None:
    seen = Counter((row["arm"], row["concurrency"], prompt) for row in whole["rows"] for prompt in row["prompts"])
    arms = ["plain", *METHODS]
    assert seen == Counter((arm, c, prompt) for arm in arms for c in (1, 2) for prompt in range(len(QUESTIONS)))
    assert all(difference is None for row in whole["rows"] for difference in row["differences"])
    for row in whole["rows"]:
        assert [len(producers) for producers in row["producers"]] == [len(ids) for ids in row["ids"]]


def test_arms_take_turns_at_going_first(folder: Path, questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    run = measuring._run

    def noted(arm: Any, *more: Any) -> Any:
        order.append(arm.label)
        return run(arm, *more)

    monkeypatch.setattr(measuring, "_run", noted)
    done = bench(folder, questions, "--limit", 3, methods={"n-gram": NGRAM, "suffix": SUFFIX})
    assert done.returncode == 0, done.stderr
    assert order == ["plain", "n-gram", "suffix", "n-gram", "suffix", "plain", "suffix", "plain", "n-gram"]


def test_no_arm_takes_over_what_it_ran_before(folder: Path) -> None:
    options = ModelOptions(model=str(folder), plugins={})
    plain = load_plain(options, 1)
    arm = build_arm(Method("n-gram", NGRAM), plain.llm, options)
    ids = [i % 50 + 1 for i in range(100)]
    for llm in (plain.llm, arm.llm):
        with llm:
            outputs = [llm.generate([ids], SamplingParams(temperature=0.0, max_tokens=2))[0] for _ in range(2)]
        assert [output.num_cached_tokens for output in outputs] == [0, 0]


def test_figures_are_those_of_the_rows(whole: Any) -> None:
    (alone, together) = whole["summary"]
    assert (alone["concurrency"], together["concurrency"]) == (1, 2)
    assert alone["tasks"] == ["mt_bench", "qa", EVIL] and alone["units"] == 5
    for place, arm in enumerate(alone["arms"]):
        rows = [row for row in whole["rows"] if row["concurrency"] == 1 and row["arm"] == arm["arm"]]
        tokens = sum(len(ids) for row in rows for ids in row["ids"])
        assert arm["tokens_per_second"]["all"] == pytest.approx(tokens / sum(row["seconds"] for row in rows))
        assert arm["identity"]["compared"] == len(QUESTIONS)
        if place:
            drafts = sum(count for _, count in arm["accepted_lengths"])
            assert drafts == sum(row["counters"]["drafts"] for row in rows) > 0
            assert drafts + arm["undrafted"] == sum(row["counters"]["steps"] for row in rows)
            speed_up = arm["speed_up"]["all"]
            assert speed_up["low"] < speed_up["value"] < speed_up["high"]
    both = alone["arms"][3]
    assert len(both["drafted_per_part"]) == 2 and min(both["drafted_per_part"]) > 0
    assert len(both["part_ms_per_token"]) == 2 and all(spent > 0 for spent in both["part_ms_per_token"])
    assert sum(both["accepted_per_part"]) == sum(n * count for n, count in both["accepted_lengths"])


def test_each_token_is_known_by_who_produced_it_and_of_combinations_by_the_part(whole: Any) -> None:
    letters = {
        arm: Counter("".join("".join(row["producers"]) for row in whole["rows"] if row["arm"] == arm))
        for arm in ("plain", *METHODS)
    }
    assert set(letters["plain"]) == {"t"}
    assert set(letters["n-gram"]) == {"d", "t"} and {"t"} < set(letters["both"]) <= {"A", "B", "t"}
    for row in whole["rows"]:
        drafted = sum(len(each) - each.count("t") for each in row["producers"])
        assert drafted == row["counters"]["accepted_kept"], row["arm"]
    assert whole["parts"] == {"both": ["suffix", "ngram"]}


def test_the_table_has_a_line_an_arm_with_its_interval_and_says_what_it_comes_to_row_97(whole: Any) -> None:
    lines = whole["printed"].splitlines()
    for each in whole["summary"]:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"concurrency {each['concurrency']}: 5 prompts"))
        for arm, line in zip(each["arms"], lines[at + 2 :], strict=False):
            assert line.startswith(f"{arm['arm']} "), line
            if arm["arm"] != "plain":
                ratio = arm["speed_up"]["all"]
                assert f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" in line
                assert "5 of 5 identical" in line
        assert set(advice(each)) <= set(lines[at:])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_arm_that_leaves_plain_decoding_fails_the_run_and_is_named_with_the_place(
    folder: Path, questions: Path, tmp_path: Path, temperature: float
) -> None:
    liar = tmp_path / "liar.py"
    liar.write_text(LIAR)
    methods = {"honest": NGRAM, "liar": {**NGRAM, "rejection_sample_method": "liar"}}
    more = ("--plugin", f"liar={liar}", "--temperature", temperature, "--limit", 2, "--json", tmp_path / "out.json")
    done = bench(folder, questions, *more, methods=methods)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert all(difference is None for row in rows if row["arm"] == "honest" for difference in row["differences"])
    wrong = [(row, d) for row in rows if row["arm"] == "liar" for d in row["differences"] if d is not None]
    if temperature:  # the verifier does not claim that the seed alone fixes the text
        assert done.returncode == 0, done.stderr
        assert {d["verdict"] for _, d in wrong} <= {"not promised"}
        return
    assert done.returncode == 1, done.stderr
    row, first = wrong[0]
    assert first["verdict"] == "fault"
    plain = next(each for each in rows if each["arm"] == "plain" and each["unit"] == row["unit"])
    assert row["ids"][0][: first["index"]] == plain["ids"][0][: first["index"]]
    assert (row["ids"][0][first["index"]], plain["ids"][0][first["index"]]) == (first["other"], first["plain"])
    place = f"liar: first difference in prompt {row['prompts'][0]} at output index {first['index']}"
    assert place in done.stdout and "fault" in done.stdout


def test_a_lossy_verifier_is_named_and_promises_nothing(folder: Path, questions: Path) -> None:
    lossy = {**NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.8, 0.7]}
    done = bench(folder, questions, "--limit", 2, methods={"fast": lossy})
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("fast"))
    assert "fast (lossy)" in line and ("identical" in line or "not promised" in line)


def test_sampled_answers_with_seeds_are_plains(folder: Path, questions: Path, whole: Any, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = bench(folder, questions, "--temperature", 0.9, "--seed", 7, "--json", file)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert all(difference is None for row in rows for difference in row["differences"])
    assert any(row["counters"]["drafted"] for row in rows)
    greedy = {row["prompts"][0]: row["ids"] for row in whole["rows"] if row["concurrency"] == 1}
    assert any(row["ids"] != greedy[row["prompts"][0]] for row in rows), "these are no greedy answers"


def stopped_after(units: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the benchmark be interrupted in the unit after so many."""
    row, seen = measuring._row, set()

    def noted(arm: Any, plain: Any, unit: Any, *more: Any) -> Any:
        seen.add((unit.concurrency, unit.number))
        if len(seen) > units:
            raise error
        return row(arm, plain, unit, *more)

    monkeypatch.setattr(measuring, "_row", noted)


def test_an_interrupted_run_keeps_finished_rows_and_resumes_to_the_same_end(
    folder: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.json"
    methods, more = {"n-gram": METHODS["n-gram"]}, ("--concurrency", "1,2", "--json", file)
    with monkeypatch.context() as stopped:
        stopped_after(3, stopped, KeyboardInterrupt())
        done = bench(folder, questions, *more, methods=methods)
    assert done.returncode == 130
    assert "3 of 8 units are finished; the same command with --resume" in done.stderr
    assert "concurrency 1: 3 prompts" in done.stdout
    kept = json.loads(file.read_text())["rows"]
    assert [(row["arm"], row["unit"]) for row in kept] == [(arm, u) for u in range(3) for arm in ("plain", "n-gram")]
    done = bench(folder, questions, *more, "--resume", methods=methods)
    assert done.returncode == 0, done.stderr
    resumed = json.loads(file.read_text())["rows"]
    assert resumed[: len(kept)] == kept, "what was measured is not measured again"
    fresh = tmp_path / "fresh.json"
    assert bench(folder, questions, "--concurrency", "1,2", "--json", fresh, methods=methods).returncode == 0
    assert without_times(resumed) == without_times(json.loads(fresh.read_text())["rows"])


def test_rows_are_in_the_file_before_a_run_is_killed(
    folder: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, at_the_end = tmp_path / "out.json", []

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:  # nothing that runs after a kill may be what saves the rows
        at_the_end.append(file.read_text() if file.exists() else "")
        raise Killed

    monkeypatch.setattr("specdec_engine.bench.session.Session._report", killed)
    stopped_after(2, monkeypatch, Killed())
    monkeypatch.setattr("specdec_engine.bench.rows.SPARE", 0)
    with pytest.raises(Killed):
        bench(folder, questions, "--json", file, methods={"n-gram": NGRAM})
    assert {row["unit"] for row in json.loads(at_the_end[0])["rows"]} == {0, 1}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (("--max-tokens", 9), "max_tokens 16, now it is 9"),
        (("--seed", 3), "seed 0, now it is 3"),
        (("--limit", 2), "prompts"),
        (("--concurrency", "2"), "concurrency"),
        (("--decode-width", 8), "decode_width None, now it is 8"),
    ],
)
def test_a_file_of_other_settings_is_not_resumed_and_stays(
    folder: Path, questions: Path, whole: Any, change: tuple[Any, ...], name: str
) -> None:
    before = whole["file"].read_text()
    given = ("--concurrency", "2,1") if "--concurrency" not in change else ()
    done = bench(folder, questions, *given, *change, "--json", whole["file"], "--resume")
    assert done.returncode == 2
    assert f"{whole['file']} was measured with {name}" in " ".join(done.stderr.split())
    assert whole["file"].read_text() == before


WRONG = {
    "a file of something else": (("--json", "{other}", "--resume"), METHODS, "is no file of `specdec bench --json`"),
    "resume without a file": (("--resume",), METHODS, "--resume needs --json"),
    "no folder": (("--html", "/nowhere/at/all.html"), METHODS, "there is no folder '/nowhere/at'"),
    "no concurrency": (("--concurrency", "1,zero"), METHODS, "expected whole numbers from 1 on"),
    "an unknown method": ((), {"mine": {"method": "ngrm", "num_speculative_tokens": 2}}, "--methods, 'mine'"),
    "plain's own name": ((), {"plain": NGRAM}, "the label 'plain'"),
    "no configuration": ((), [], "there is no configuration in it"),
    "no method in it": ((), {"num_speculative_tokens": 3}, "needs 'method' or 'model'"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_cannot_work_is_said_before_weights_are_loaded(
    case: str, folder: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("specdec_engine.bench.prompted.load_plain", loaded)
    other = tmp_path / "other.json"
    other.write_text('{"rows": []}')
    more, methods, said = WRONG[case]
    done = bench(folder, questions, *(str(each).replace("{other}", str(other)) for each in more), methods=methods)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_units_hold_neighbours_of_one_task_and_a_limit_takes_from_all_tasks(tmp_path: Path) -> None:
    prompts = [BenchPrompt(task, str(i), "") for i, task in enumerate("aababbb")]
    units = units_of(prompts, 2)
    assert [(unit.task, unit.prompts) for unit in units] == [("a", (0, 1)), ("b", (2, 4)), ("a", (3,)), ("b", (5, 6))]
    assert [unit.number for unit in units] == [0, 1, 2, 3]
    file = question_file(tmp_path)
    assert [prompt.task for prompt in load_prompts(file, 3)] == ["mt_bench", "qa", EVIL]
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\ntwo\n")
    assert [(prompt.task, prompt.text) for prompt in load_prompts(lines, None)] == [
        ("prompts", "one"),
        ("prompts", "two"),
    ]
