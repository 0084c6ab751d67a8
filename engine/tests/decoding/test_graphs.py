"""Forwards in fixed shapes: padding changes nothing, inputs stay at their places; a plain call stands for a graph."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from specdec_engine import LLM, SamplingParams
from specdec_nn.device_copies import to_device
from specdec_nn.graphs import Replayed, power_of_2, rows_of
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Garbage, Perfect, stub_plugin
from specdec_testing.targets import tiny_target
from specdec_testing.trees import PerfectTree

TARGET = tiny_target("llama")
VOCAB = TARGET.config.vocab_size
PROMPTS = [{"prompt_token_ids": ids} for ids in ([3, 4, 5], [7] * 40, [9, 1, 2, 11, 6], [8])]
GREEDY = [SamplingParams(temperature=0.0, max_tokens=9 + 4 * i, ignore_eos=True) for i in range(4)]


class Played:
    """Captures an action as itself; counts, and notes where the inputs of each shape are at every replay."""

    def __init__(self, llm: LLM) -> None:
        flat = llm._engine.target.flat
        self.replays = 0
        self.places: dict[Any, set[tuple[int, ...]]] = defaultdict(set)
        self.graphs = flat.graphs = Replayed(flat.work, self.capture)

    def capture(self, action: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.replays += 1
            for sizes, bucket in self.graphs._buckets.items():
                assert bucket is not None
                fixed = (*bucket.inputs, bucket.tables.host, bucket.tables.device)
                self.places[sizes].add(tuple(part.data_ptr() for part in fixed))
            action()

        return replay


def generated(graphs: bool, proposer: Any = None, k: int = 4, **options: Any) -> tuple[list[list[int]], Played | None]:
    """Return the ids of all prompts, with forwards in fixed shapes or as they come."""
    config = None
    if proposer is not None:
        options["plugins"] = {"stub": stub_plugin(proposer)}
        config = {"method": "stub", "num_speculative_tokens": k}
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, max_num_seqs=3, **options) as llm:
        played = Played(llm) if graphs else None
        results = llm.generate(PROMPTS, GREEDY)
    return [list(result.outputs[0].token_ids) for result in results], played


def perfect() -> Perfect:
    return Perfect(dict(zip((tuple(p["prompt_token_ids"]) for p in PROMPTS), PLAIN, strict=True)))


PLAIN, _ = generated(False)
DRAFTERS: dict[str, Callable[[], Any]] = {
    "no drafts": lambda: None,
    "right drafts": perfect,
    "wrong drafts": lambda: Garbage(VOCAB),
    "trees": lambda: PerfectTree(perfect().outputs, VOCAB),
}


@pytest.mark.parametrize("options", [{}, {"decode_width": 5}, {"fused": False}], ids=str)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_padded_forwards_give_the_same_text(drafter: str, options: dict[str, Any]) -> None:
    texts, played = generated(True, DRAFTERS[drafter](), **options)
    assert texts == PLAIN
    assert played is not None
    assert played.replays > 5
    assert played.places


@pytest.mark.parametrize("drafter", ["no drafts", "wrong drafts", "trees"])
def test_inputs_of_a_shape_stay_at_their_places(drafter: str) -> None:
    _, played = generated(True, DRAFTERS[drafter]())
    assert played is not None
    assert len(played.places) > 1
    assert all(len(places) == 1 for places in played.places.values())


def test_few_shapes_serve_all_steps() -> None:
    """A graph for every number of rows and pages would be captured again and again."""
    _, played = generated(True, Garbage(VOCAB), k=6)
    assert played is not None
    assert played.replays > 3 * len(played.places)
    assert [rows_of(n) for n in (1, 2, 3, 4, 5, 8, 9, 33)] == [1, 2, 4, 4, 8, 8, 16, 40]
    assert [power_of_2(n) for n in (0, 1, 2, 3, 17)] == [0, 1, 2, 4, 32]


def test_rows_for_proposers_are_those_of_forwards_that_are_not_captured() -> None:
    """States are copied before the next forward writes to the same place."""
    seen = []
    for graphs in (False, True):
        recorder = RecordingProposer("all", hidden=True, aux_layers=(0, 1), inner=Garbage(VOCAB))
        generated(graphs, recorder)
        rows = [call.rows for call in recorder.calls_seen]
        seen.append([(row.positions.tolist(), row.hidden, row.aux) for row in rows if row is not None])
    assert len(seen[0]) > 5
    for (places, hidden, aux), (other_places, other_hidden, other_aux) in zip(*seen, strict=True):
        assert places == other_places
        torch.testing.assert_close(hidden, other_hidden, rtol=0, atol=0)
        torch.testing.assert_close(aux, other_aux, rtol=0, atol=0)


def test_prompts_and_other_arenas_are_no_matter_of_graphs() -> None:
    with LLM(hf_model=TARGET, max_num_seqs=3) as llm:
        played = Played(llm)
        one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        llm.generate(PROMPTS[:3], one)
        assert played.replays == 0, "prompts run in shapes of their own"
        llm.generate(PROMPTS[:2], GREEDY[:2])
        before = dict(played.graphs._buckets)
        llm.pause()
        llm.resume(512)
        again = llm.generate(PROMPTS[:2], GREEDY[:2])
        after = played.graphs._buckets
        assert before and after
        assert all(after.get(sizes) is not bucket for sizes, bucket in before.items())
    assert [list(result.outputs[0].token_ids) for result in again] == PLAIN[:2]


@pytest.mark.parametrize("fault", ["raises", "differs"])
def test_what_cannot_be_captured_runs_as_it_is(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    with LLM(hf_model=TARGET, max_num_seqs=3) as llm:
        flat = llm._engine.target.flat

        def capture(action: Callable[[], None]) -> Callable[[], None]:
            if fault == "raises":
                raise RuntimeError("operation not permitted when stream is capturing")

            def replay() -> None:
                action()
                outputs[-1][0].add_(1.0)

            return replay

        outputs: list[Any] = []

        def work(*given: Any) -> Any:
            outputs.append(flat.work(*given))
            return outputs[-1]

        flat.graphs = Replayed(work, capture)
        with caplog.at_level(logging.WARNING, "specdec_nn"):
            results = llm.generate(PROMPTS[:2], GREEDY[:2])
        assert flat.graphs.shapes == []
    assert [list(result.outputs[0].token_ids) for result in results] == PLAIN[:2]
    text = " ".join(caplog.messages)
    assert "runs eagerly" in text
    assert ("stream is capturing" if fault == "raises" else "differs by") in text


def test_work_that_copies_from_the_host_is_not_captured(caplog: pytest.LogCaptureFixture) -> None:
    """A replay would bring the numbers of the step that it was captured at."""

    def runs_twice(action: Callable[[], None]) -> Callable[[], None]:
        action()
        return action

    with LLM(hf_model=TARGET, max_num_seqs=3) as llm:
        flat = llm._engine.target.flat

        def work(step: Any, arena: Any, given: Any) -> Any:
            to_device(np.zeros(3, np.int64), flat.device)
            return flat.work(step, arena, given)

        flat.graphs = Replayed(work, runs_twice)
        with caplog.at_level(logging.WARNING, "specdec_nn"):
            results = llm.generate(PROMPTS[:2], GREEDY[:2])
        assert flat.graphs.shapes == []
    assert [list(result.outputs[0].token_ids) for result in results] == PLAIN[:2]
    assert "copies an array of the host" in " ".join(caplog.messages)


def test_enforce_eager_is_a_switch() -> None:
    with pytest.raises(Exception, match="enforce_eager=3: expected True or False"):
        LLM(hf_model=TARGET, enforce_eager=3)  # type: ignore[arg-type]
    for value in (True, False, np.bool_(False)):
        with LLM(hf_model=TARGET, enforce_eager=value) as llm:
            assert llm._engine.target.flat.graphs is None, "there are no graphs on a CPU"
