"""A caller's logits processors: their forms, what they are shown, how states move, and what happens if they fail."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from runs import ids_of, run

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Fixed, Garbage, Perfect, stub_plugin
from specdec_testing.table import random_table, table_target
from specdec_testing.trees import GarbageTree, PerfectTree

VOCAB = 12
MODEL = table_target(random_table(VOCAB, seed=5))
PROMPT = [3, 1, 4]


def params(*processors: Any, temperature: float = 0.7, **more: Any) -> SamplingParams:
    common = {"temperature": temperature, "seed": 11, "max_tokens": 20, "ignore_eos": True}
    return SamplingParams(**{**common, "logits_processors": list(processors), **more})


class Recording:
    """Notes the prefixes that it is shown, and changes nothing."""

    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []
        self.dtypes: set[Any] = set()

    def apply(self, prefix: Any, logits: Any) -> Any:
        self.prefixes.append(prefix.tolist())
        self.dtypes.add((prefix.dtype, logits.dtype, tuple(logits.shape)))
        with pytest.raises(ValueError, match="read-only"):
            prefix[0] = 5
        return logits


class Counting:
    """Has a state, the ids it was moved by; forbids an id twice in a row. `moves` is shared by all forks."""

    def __init__(self, moves: list[tuple[str, int]] | None = None, said: list[int] | None = None) -> None:
        self.moves = [] if moves is None else moves
        self.said = [] if said is None else said

    def fork(self) -> Counting:
        self.moves.append(("fork", 0))
        return Counting(self.moves, list(self.said))

    def accept(self, token: int) -> None:
        assert type(token) is int
        self.moves.append(("accept", token))
        self.said.append(token)

    def rollback(self, count: int) -> None:
        assert 0 < count <= len(self.said)
        self.moves.append(("rollback", count))
        del self.said[-count:]

    def apply(self, prefix: Any, logits: Any) -> Any:
        assert self.said == prefix[len(prefix) - len(self.said) :].tolist()
        if self.said:
            logits[self.said[-1]] = -torch.inf
        return logits


def test_every_verified_row_is_shown_once_with_the_ids_before_it() -> None:
    plain = Recording()
    result = run(MODEL, [PROMPT], params(plain))
    said = result[0].outputs[0].token_ids
    assert plain.prefixes == [PROMPT + said[:n] for n in range(20)]
    assert plain.dtypes == {(np.dtype(np.int32), torch.float32, (VOCAB,))}
    seen = Recording()
    spec = run(MODEL, [PROMPT], params(seen), Perfect.of_run([PROMPT], result), k=4)
    assert ids_of(spec) == ids_of(result)
    assert seen.prefixes == plain.prefixes, "all drafts are right, so the rows are those of plain decoding"
    seen = Recording()
    spec = run(MODEL, [PROMPT], params(seen), Garbage(VOCAB), k=4)
    assert ids_of(spec) == ids_of(result)
    assert len(seen.prefixes) == 1 + spec[0].metrics.steps + spec[0].metrics.drafted
    for prefix in plain.prefixes:
        assert prefix in seen.prefixes


def test_nodes_of_a_tree_are_shown_with_the_path_to_them() -> None:
    plain = run(MODEL, [PROMPT], params(Recording()))
    seen = Recording()
    spec = run(MODEL, [PROMPT], params(seen), PerfectTree.of_run([PROMPT], plain, VOCAB), k=6)
    assert ids_of(spec) == ids_of(plain) and spec[0].metrics.accepted > 5
    said = PROMPT + plain[0].outputs[0].token_ids
    for n in range(3, 23):
        assert said[:n] in seen.prefixes
    # A prefix that strays from the text does so in the drafts of one step, by at most as many ids as it has nodes.
    for prefix in seen.prefixes:
        common = next((i for i, (a, b) in enumerate(zip(prefix, said, strict=False)) if a != b), len(prefix))
        assert len(prefix) - common <= 6


def test_functions_are_told_by_their_arguments() -> None:
    seen: dict[str, Any] = {}

    def of_output(output: Any, logits: Any) -> Any:
        seen.setdefault("output", []).append(output)
        return logits

    def of_both(prompt: Any, output: Any, logits: Any) -> Any:
        seen.setdefault("both", []).append((prompt, output))
        return logits

    class Callable2:
        def __call__(self, output: Any, logits: Any, scale: float = 1.0) -> Any:
            seen.setdefault("object", []).append(output)
            return logits

    said = run(MODEL, [PROMPT], params(of_output, of_both, Callable2(), max_tokens=3))[0].outputs[0].token_ids
    outputs = [(), tuple(said[:1]), tuple(said[:2])]
    assert seen["output"] == seen["object"] == outputs
    assert seen["both"] == [((3, 1, 4), output) for output in outputs]


def test_processors_run_in_their_order_and_before_temperature() -> None:
    def double(output: Any, logits: Any) -> Any:
        return logits * 2

    def add(output: Any, logits: Any) -> Any:
        logits[6] += 1.0
        return logits

    distribution = torch.log_softmax(torch.tensor(random_table(VOCAB, seed=5)).log().float()[4], 0)
    with LLM(hf_model=MODEL, logprobs_mode="processed_logits") as llm:
        (entry,) = llm.generate([PROMPT], params(double, add, max_tokens=1, logprobs=-1))[0].outputs[0].logprobs
    bias = torch.zeros(VOCAB)
    bias[6] = 1.0
    expected = (distribution * 2 + bias) / 0.7
    got = torch.tensor([entry[token].logprob for token in range(VOCAB)])
    torch.testing.assert_close(got - got[0], expected - expected[0], rtol=1e-4, atol=1e-4)


def test_a_state_moves_by_emitted_ids_and_is_rolled_back_after_every_step() -> None:
    result = run(MODEL, [PROMPT], params(Counting()))
    said = result[0].outputs[0].token_ids
    assert all(a != b for a, b in itertools.pairwise(said))
    for stub in (Perfect.of_run([PROMPT], result), Garbage(VOCAB), Fixed([6, 1, 6, 6]), GarbageTree(VOCAB)):
        counting = Counting()
        assert ids_of(run(MODEL, [PROMPT], params(counting), stub)) == ids_of(result)
        assert counting.said == [], "the caller's own object has not moved"
        net = sum(1 if move == "accept" else -count if move == "rollback" else 0 for move, count in counting.moves)
        assert net == 20
        assert any(move == "rollback" for move, _ in counting.moves)


def test_a_tree_is_walked_depth_first_with_few_moves() -> None:
    """Every node is entered once, however its nodes are ordered."""
    counting, stub = Counting(), GarbageTree(VOCAB, seed=2)
    result = run(MODEL, [PROMPT], params(counting), stub, k=12)
    accepts = sum(move == "accept" for move, _ in counting.moves)
    assert accepts == result[0].metrics.drafted + 20
    assert result[0].metrics.drafted > 100


def test_every_sample_and_every_prompt_has_a_state_of_its_own() -> None:
    counting = Counting()
    together = run(MODEL, [PROMPT, [7]], params(counting, n=3), Garbage(VOCAB))
    assert counting.moves.count(("fork", 0)) == 6
    assert ids_of(together) == ids_of(run(MODEL, [PROMPT, [7]], params(Counting(), n=3)))


def test_a_state_survives_preemption() -> None:
    texts = [PROMPT, [5, 5], [8], [2, 9]]
    wanted = params(Counting(), max_tokens=60)
    expected = ids_of(run(MODEL, texts, wanted))
    stub = Garbage(VOCAB)
    assert ids_of(run(MODEL, texts, wanted, stub, kv_cache_tokens=160)) == expected
    assert any(reason == "preempted" for _, reason in stub.finished)


class NoRollback(Counting):
    rollback = None  # type: ignore[assignment]

    def fork(self) -> NoRollback:
        return NoRollback(self.moves, list(self.said))


def test_a_state_that_cannot_go_back_is_decoded_plainly_while_others_speculate() -> None:
    wanted = [params(NoRollback()), params(temperature=0.7)]
    plain = run(MODEL, [PROMPT, PROMPT], wanted)
    assert plain[0].outputs[0].plain_reason is None, "there is nothing to be left out"
    stub = Perfect.of_run([PROMPT], plain[1:])
    spec = run(MODEL, [PROMPT, PROMPT], wanted, stub)
    assert ids_of(spec) == ids_of(plain)
    assert [result.metrics.drafted > 0 for result in spec] == [False, True]
    reason = spec[0].outputs[0].plain_reason
    assert reason is not None and "NoRollback" in reason and "rollback" in reason
    assert spec[1].outputs[0].plain_reason is None
    assert stub.started == ["1-0"], "the proposer never hears of the other"


def broken_at(length: int) -> Any:
    def broken(output: Any, logits: Any) -> Any:
        if len(output) >= length:
            message = "out of luck"
            raise ValueError(message)
        return logits

    return broken


class Jams(Counting):
    """`accept` refuses the sixth id, which `apply` has not made impossible."""

    def fork(self) -> Jams:
        return Jams(self.moves, list(self.said))

    def accept(self, token: int) -> None:
        if len(self.said) == 5:
            message = "full"
            raise KeyError(message)
        super().accept(token)


FAILING: dict[str, tuple[Any, int, str]] = {
    "raises": (broken_at(7), 7, "broken_at.<locals>.broken failed: ValueError: out of luck"),
    "raises at once": (broken_at(0), 0, "ValueError"),
    "returns nothing": (lambda output, logits: None, 0, "returned NoneType"),
    "returns too much": (lambda output, logits: logits.repeat(2), 0, "returned (24,)"),
    "returns whole numbers": (lambda output, logits: logits.long(), 0, "returned (12,)"),
    "leaves no id": (lambda output, logits: logits - torch.inf, 0, "logits_processors left no id"),
    "returns no numbers": (
        lambda output, logits: logits * torch.nan,
        0,
        "the logits processors returned logits that are not finite",
    ),
    "accept raises": (Jams(), 6, "Jams failed: KeyError"),
}


@pytest.mark.parametrize("drafts", [None, [6, 1, 6, 6], [5, 9]])
@pytest.mark.parametrize("case", FAILING)
def test_a_processor_that_fails_ends_its_own_request_and_says_who_and_where(case: str, drafts: Any) -> None:
    processor, length, expected = FAILING[case]
    wanted = [params(), params(processor), params(temperature=0.0)]
    alone = [run(MODEL, [PROMPT], one)[0].outputs[0] for one in (wanted[0], wanted[2])]
    stub = None if drafts is None else Fixed(drafts)
    config = {"method": "stub", "num_speculative_tokens": 4} if stub else None
    plugins = {"stub": stub_plugin(stub)} if stub else {}
    with LLM(hf_model=MODEL, speculative_config=config, plugins=plugins) as llm:
        first, failed, last = (result.outputs[0] for result in llm.generate([PROMPT] * 3, wanted))
        llm._engine.target.arena.check_integrity([])
        again = llm.generate([PROMPT], wanted[0])[0].outputs[0]
    assert [first.token_ids, last.token_ids, again.token_ids] == [*(o.token_ids for o in alone), alone[0].token_ids]
    assert failed.finish_reason == "error" and failed.error is not None
    assert expected in failed.error and "request 1-0" in failed.error
    assert len(failed.token_ids) == length and f"output id {length}" in failed.error
    assert failed.token_ids == run(MODEL, [PROMPT], wanted[1])[0].outputs[0].token_ids
    if stub is not None:
        assert ("1-0", "aborted") in stub.finished or length == 0


def test_a_failure_that_only_drafts_meet_ends_nothing() -> None:
    def allergic(output: Any, logits: Any) -> Any:
        if 0 in output:
            message = "zero"
            raise ValueError(message)
        logits[0] -= 50.0
        return logits

    class Allergic(Counting):
        def fork(self) -> Allergic:
            return Allergic(self.moves, list(self.said))

        def accept(self, token: int) -> None:
            if token == 0:
                message = "zero"
                raise ValueError(message)
            super().accept(token)

        def apply(self, prefix: Any, logits: Any) -> Any:
            logits[0] -= 50.0
            return super().apply(prefix, logits)

    for processor in (allergic, Allergic()):
        expected = run(MODEL, [PROMPT], params(processor))
        assert expected[0].outputs[0].finish_reason == "length"
        for stub in (Fixed([0, 1, 6]), Fixed([1, 0, 0]), Garbage(VOCAB), GarbageTree(VOCAB)):
            spec = run(MODEL, [PROMPT], params(processor), stub)
            assert ids_of(spec) == ids_of(expected) and spec[0].metrics.drafted > 0


class OnlyAccept:
    def accept(self, token: int) -> None: ...

    def apply(self, prefix: Any, logits: Any) -> Any:
        return logits


class BadFork(Counting):
    def fork(self) -> BadFork:
        message = "sold out"
        raise OSError(message)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (lambda logits: logits, "takes neither"),
        (lambda a, b, c, d: a, "takes neither"),
        (OnlyAccept(), "OnlyAccept has accept"),
        (BadFork(), "BadFork raised OSError: sold out"),
        ("text", "logits_processors"),
        (object(), "logits_processors"),
    ],
)
def test_what_is_no_processor_is_refused_before_anything_runs(processor: Any, expected: str) -> None:
    with LLM(hf_model=MODEL) as llm:
        with pytest.raises(RequestError, match=expected):
            llm.generate([PROMPT, PROMPT], [SamplingParams(), params(processor)])
        assert not llm._engine.scheduler.waiting and not llm._engine.scheduler.running
