"""`specdec replay`: what a method does on recorded traces is what it did in the engine, and no target is loaded."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_runs import MERGED, NGRAM, SUFFIX, UNCUT, bench, question_file
from runs import params, prompts, run, target
from words import model_folder

from specdec_core.draft import Draft
from specdec_core.errors import RequestError
from specdec_core.host.runner import ProposerRunner
from specdec_core.host.verified import Answers
from specdec_core.metrics import SpecMetrics
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.traits import MethodTraits
from specdec_engine.bench.methods import check_methods, load_methods
from specdec_engine.replay.run import Replayer, Score, accepted_path
from specdec_engine.replay.target import TraceTarget, describe
from specdec_engine.reporting import speed
from specdec_engine.traces import Trace, read_traces, write_traces
from specdec_testing.commands import run_specdec
from specdec_testing.stubs import Null, stub_plugin

COUNTS = (
    "steps",
    "drafts",
    "empty",
    "proposed",
    "drafted",
    "accepted",
    "emitted",
    "drafted_per_pos",
    "accepted_per_pos",
)
TREES = {"method": "suffix", "num_speculative_tokens": 8, "tree_drafts": True}
LOOKUPS = {  # a replay knows no times, by which an engine would leave drafts out
    name: {**config, **UNCUT}
    for name, config in {"n-gram": NGRAM, "suffix": SUFFIX, "trees": TREES, "merged": MERGED}.items()
}

RECYCLING = {"method": "token_recycling", "num_speculative_tokens": 4, "candidates": 1, "tree": "chain", **UNCUT}
TREE = {**RECYCLING, "candidates": 4, "tree": "dynamic"}


def traced(model: Any, texts: Any, results: Any, max_tokens: int) -> list[Trace]:
    return [
        Trace(
            prompt_token_ids=tuple(text["prompt_token_ids"]),
            token_ids=tuple(result.outputs[0].token_ids),
            max_tokens=max_tokens,
            vocab_size=model.config.vocab_size,
        )
        for text, result in zip(texts, results, strict=True)
    ]


def replayed(traces: list[Trace], config: Any, plugins: Any = None) -> Score:
    info, registry = describe(traces), Registry(Catalog.discover().with_local(plugins))
    (resolved,) = check_methods(load_methods([json.dumps(config)]), info, registry).values()
    replayer, score = Replayer(resolved, TraceTarget(info), registry), Score()
    for number, trace in enumerate(traces):
        replayer.run(number, trace, score)
    assert replayer.failures == 0
    replayer.close()
    return score


def assert_counts(score: Score, results: Any) -> None:
    engines = SpecMetrics()
    engines.merge(result.metrics for result in results)
    for count in COUNTS:
        assert getattr(score.metrics, count) == getattr(engines, count), count


@pytest.mark.parametrize("name", list(LOOKUPS))
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_replay_counts_what_the_engine_counted(name: str, temperature: float) -> None:
    model, texts = target("llama"), prompts((40, 60, 9, 80))
    sampling = params(4, temperature=temperature, max_tokens=40)
    # One request at a time, since requests of methods that remember see those before them.
    with_draft = run(model, texts, sampling, config=LOOKUPS[name], max_num_seqs=1)
    score = replayed(traced(model, texts, with_draft, 40), LOOKUPS[name])
    assert_counts(score, with_draft)
    assert score.metrics.accepted > 0 and score.tokens == 4 * 40 and score.seconds > 0


def test_bench_records_what_plain_decoding_answered_and_replay_tells_parts_and_tasks(tmp_path: Path) -> None:
    model, file, figures = model_folder(tmp_path / "tiny"), tmp_path / "traces.jsonl", tmp_path / "out.json"
    done = bench(
        model, question_file(tmp_path), "--record", file, "--json", figures, methods={"n-gram": LOOKUPS["n-gram"]}
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(figures.read_text())["rows"]
    plain = {row["prompts"][0]: row["ids"][0] for row in rows if row["arm"] == "plain"}
    traces = read_traces(file)
    assert [list(trace.token_ids) for trace in traces] == [plain[i] for i in range(5)]
    assert [trace.task for trace in traces][:3] == ["mt_bench", "mt_bench", "qa"]
    scores = tmp_path / "scores.json"
    done = run_specdec("replay", file, "--methods", json.dumps(LOOKUPS), "--json", scores)
    assert done.returncode == 0, done.stderr
    by_name = {arm["arm"]: arm for arm in json.loads(scores.read_text())["arms"]}
    counted = sum(row["counters"]["accepted"] for row in rows if row["arm"] == "n-gram")
    assert by_name["n-gram"]["accepted"] == counted > 0
    assert list(by_name["merged"]["parts"]) == ["0.suffix", "1.ngram"]
    assert sum(a for _, a in by_name["merged"]["parts"].values()) == by_name["merged"]["accepted"]
    assert set(by_name["merged"]["tasks"]) == {trace.task for trace in traces}
    lines = done.stdout.splitlines()
    assert lines[0] == f"5 traces, {sum(len(trace.token_ids) for trace in traces)} tokens"
    for name, arm in by_name.items():
        line = next(line for line in lines if line.startswith(f"{name} "))
        assert f"{arm['tokens_per_step']:.2f}" in line and f" {arm['drafted']} " in line


def test_generate_records_likely_ids_and_replay_tells_how_many_answers_it_knew(tmp_path: Path) -> None:
    model, file, scores = model_folder(tmp_path / "tiny"), tmp_path / "traces.jsonl", tmp_path / "scores.json"
    arguments = ("--prompt", "a hat and a hat", "--prompt", "the cat", "--max-tokens", 24, "--record", file)
    assert run_specdec("generate", model, *arguments, "--record-top", 3).returncode == 0
    for trace in read_traces(file):
        assert trace.top_n == 3 and [place[0][0] for place in trace.top] == list(trace.token_ids)
    few, many = ({**TREE, "candidates": count} for count in (3, 4))
    done = run_specdec("replay", file, "--methods", json.dumps({"few": few, "n-gram": NGRAM}), "--json", scores)
    assert done.returncode == 0, done.stderr
    told, other = json.loads(scores.read_text())["arms"]
    rows = told["steps"] + told["accepted"] + 2  # and the last row of each prompt
    assert told["answered"] == pytest.approx(rows / (rows + told["drafted"] - told["accepted"]))
    assert other["answered"] is None
    assert f"few learns from the target's answers; traces have {100 * told['answered']:.0f} %" in done.stdout
    done = run_specdec("replay", file, "--methods", json.dumps({"many": many}))
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and "learns from the 4 likeliest ids" in said and "the traces have 3" in said
    done = run_specdec("generate", model, "--prompt", "a", "--record-top", 3)
    assert done.returncode == 2 and "--record-top needs --record" in done.stderr


def test_generate_records_ids_that_replay_reads(tmp_path: Path) -> None:
    model, file = model_folder(tmp_path / "tiny"), tmp_path / "traces.jsonl"
    arguments = ("--prompt", "a hat and a hat", "--prompt", "the cat", "--max-tokens", 12)
    done = run_specdec("generate", model, *arguments, "--record", file, "--json")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["token_ids"] for line in done.stdout.splitlines()]
    traces = read_traces(file)
    assert [list(trace.token_ids) for trace in traces] == answers
    assert {(trace.max_tokens, trace.vocab_size, trace.model) for trace in traces} == {(12, 277, str(model))}
    assert run_specdec("replay", file, "--methods", json.dumps(NGRAM)).returncode == 0


def told(traces: list[Trace], results: Any, top: int) -> list[Trace]:
    """The traces with what `--record-top` adds."""
    places = [[speed._likeliest(place, top) for place in result.outputs[0].logprobs] for result in results]
    return [replace(trace, top=tuple(own)) for trace, own in zip(traces, places, strict=True)]


@pytest.mark.parametrize("config", [RECYCLING, TREE], ids=["chain", "tree"])
def test_a_method_that_learns_from_answers_is_replayed_as_in_an_engine_that_shows_it_what_was_accepted(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts, sampling = target("llama"), prompts((40, 60, 9, 80)), params(4, max_tokens=40)
    plain = run(model, texts, [replace(each, logprobs=4) for each in sampling])
    hidden, show = 0, ProposerRunner.answer

    def show_accepted(self: ProposerRunner, request: Any, answers: Answers) -> None:
        nonlocal hidden
        kept = answers.accepted
        hidden += len(kept) - int(kept.sum())
        path = np.arange(kept.sum() - 1, dtype=np.int32)
        show(
            self,
            request,
            Answers.of(answers.tokens[kept], None, path, answers.top_ids[kept], answers.top_logprobs[kept]),
        )

    with monkeypatch.context() as patch:
        patch.setattr(ProposerRunner, "answer", show_accepted)
        with_draft = run(model, texts, sampling, config=config, max_num_seqs=1)
    score = replayed(told(traced(model, texts, plain, 40), plain, 4), config)
    assert_counts(score, with_draft)
    assert hidden == score.metrics.drafted - score.metrics.accepted > 0 and score.metrics.accepted > 0


def test_where_all_drafts_come_true_a_replay_counts_what_the_engine_counted() -> None:
    model, texts, sampling = copy.deepcopy(target("llama")), prompts((40, 9)), params(2, max_tokens=60)
    with torch.no_grad():  # layers that add nothing: every id has one successor, whatever came before
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    with_draft = run(model, texts, sampling, config=RECYCLING, max_num_seqs=1)
    plain = run(model, texts, [replace(each, logprobs=1) for each in sampling])
    score = replayed(told(traced(model, texts, plain, 60), plain, 1), RECYCLING)
    assert_counts(score, with_draft)
    assert score.metrics.accepted == score.metrics.drafted > 60


NEEDY = {
    "states": (MethodTraits(rows="all", hidden=True, weights="none"), "reads the target's hidden states"),
    "last state": (MethodTraits(rows="last", hidden=True), "reads the target's hidden states"),
    "layers": (MethodTraits(rows="all", aux_layers=(0,)), "reads the target's hidden states"),
    "verified rows": (MethodTraits(verified_top_k=4), "learns from the 4 likeliest ids at verified rows"),
    "layers of the target": (MethodTraits(first_layers=2), "runs the target's first layers"),
    "keys of the target": (MethodTraits(target_keys=True), "attends to the target's keys and values"),
    "weights": (MethodTraits(weights="own"), "has weights that are loaded for a target"),
}
TRACE = Trace(prompt_token_ids=(5, 6, 5), token_ids=(6, 5, 6))


class Needy(Null):
    """Says that it needs something."""

    def __init__(self, traits: MethodTraits) -> None:
        super().__init__()
        self.traits = traits


@pytest.mark.parametrize("name", list(NEEDY))
@pytest.mark.parametrize("as_part", [False, True])
def test_a_method_that_needs_a_target_is_refused_by_name_with_the_reason(
    name: str, as_part: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits, reason = NEEDY[name]
    file = tmp_path / "traces.jsonl"
    write_traces(file, [TRACE])
    monkeypatch.setattr("specdec_engine.cli.read_plugins", lambda _: {"needy": stub_plugin(Needy(traits))})
    config: dict[str, Any] = {"method": "needy", "num_speculative_tokens": 2}
    if traits.weights == "own":
        config["model"] = str(model_folder(tmp_path / "draft"))
    if as_part:
        config = {"method": "combine", "methods": [NGRAM, config]}
    done = run_specdec("replay", file, "--methods", json.dumps({"mine": config}))
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and "'mine' cannot be replayed" in said and f"method 'needy' {reason}" in said, said
    assert "'ngram'" not in said


def test_a_tree_is_followed_as_far_as_it_came_true() -> None:
    tokens, parents = np.array([7, 8, 9, 4, 5], np.int32), np.array([-1, 0, 0, 2, -1], np.int32)
    tree = Draft([5], tokens, parents)
    assert accepted_path(tree, [7, 9, 4, 1]) == [0, 2, 3]
    assert accepted_path(tree, [5, 7]) == [4]
    assert accepted_path(tree, [7, 9]) == [0, 2] and accepted_path(tree, [9]) == []
    assert accepted_path(Draft([3], np.array([1, 2, 3], np.int32)), [1, 2, 4]) == [0, 1]


WRONG = {
    "no JSON": ("{", "line 2 is not valid JSON"),
    "no ids": ('{"prompt_token_ids": [1]}', "line 2: expected an object with 'prompt_token_ids' and 'token_ids'"),
    "texts": ('{"prompt_token_ids": [1], "token_ids": ["a"]}', "each a list of ids"),
    "an empty answer": ('{"prompt_token_ids": [1], "token_ids": []}', "that is not empty"),
    "a negative id": ('{"prompt_token_ids": [-1], "token_ids": [2]}', "each a list of ids"),
    "an id beyond the vocabulary": (
        '{"prompt_token_ids": [1], "token_ids": [9], "vocab_size": 9}',
        "line 2: id 9 is outside its vocab_size 9",
    ),
    "no number": (
        '{"prompt_token_ids": [1], "token_ids": [9], "max_tokens": true}',
        "max_tokens must be a whole number",
    ),
    "too few places": (
        '{"prompt_token_ids": [1], "token_ids": [9, 8], "top": [[[9, -0.1]]]}',
        "each of the 2 token_ids",
    ),
    "a place that is no list of pairs": ('{"prompt_token_ids": [1], "token_ids": [9], "top": [[9]]}', "pairs of an id"),
    "likely ids in another order": (
        '{"prompt_token_ids": [1], "token_ids": [9], "top": [[[9, -2.0], [8, -0.1]]]}',
        "the likeliest first",
    ),
    "no text": ('{"prompt_token_ids": [1], "token_ids": [9], "task": 3}', "task must be a text"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_line_that_is_no_trace_is_named(case: str, tmp_path: Path) -> None:
    line, said = WRONG[case]
    file = tmp_path / "traces.jsonl"
    file.write_text(f'{{"prompt_token_ids": [1], "token_ids": [2], "from": "elsewhere"}}\n{line}\n')
    with pytest.raises(RequestError) as caught:
        read_traces(file)
    assert said in str(caught.value)


def test_traces_come_back_as_they_were_and_empty_answers_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    top = (((3, -0.25), (4, -2.0)),)
    full = Trace(prompt_token_ids=(1, 2), token_ids=(3,), task="qa", max_tokens=9, vocab_size=10, model="m", top=top)
    write_traces(file, [TRACE, Trace(prompt_token_ids=(1,), token_ids=()), full])
    assert read_traces(file) == [TRACE, full]


def test_a_vocabulary_that_no_trace_tells_holds_likely_ids_as_well() -> None:
    trace = replace(TRACE, top=(((6, -0.1), (40, -3.0)), ((5, -0.1),), ((6, -0.1),)))
    assert (describe([TRACE]).vocab_size, describe([TRACE, trace]).vocab_size) == (7, 41)


def test_models_of_different_vocabularies_are_not_replayed_together(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    ids = {"prompt_token_ids": (1,), "token_ids": (2, 3)}
    write_traces(file, [Trace(**ids, vocab_size=10), Trace(**ids, vocab_size=11)])
    done = run_specdec("replay", file, "--methods", json.dumps(NGRAM))
    assert done.returncode == 2 and "different vocabularies, of [10, 11] ids" in done.stderr
