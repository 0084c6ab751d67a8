"""Drafts over whole lives, held against the stock model: chunks, joins, rejections, pauses, preemption in one batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from draft_model_folders import asked, draft, drafter, patch, saved
from draft_model_oracle import Checked, Ids, Oracle
from draft_model_tokenizers import numbered

from specdec_testing.contract import script_batch
from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.targets import tiny_target

VOCAB = 128
TARGET = FakeTarget(tiny_target("llama"))
MASK = 125


def lives(count: int = 6, seed: int = 0) -> list[Script]:
    """Requests of many shapes whose drafts are accepted in part, some of them paused and preempted."""
    return [
        replace(
            script,
            accept=((0, 4, 1), (4,), (2, 0, 3))[i % 3],
            off=frozenset(((), (1, 2), (2,))[i % 3]),
            preempt=(None, 3, None)[i % 3],
        )
        for i, script in enumerate(script_batch(count, seed, VOCAB, 4))
    ]


def checked(model: str, ids: Ids, target: FakeTarget = TARGET, *, pard: int | None = None, **options: Any) -> Checked:
    """Lead a drafter through lives, each of its drafts held against the oracle's."""
    proposer, traits = drafter(model, target, **options)
    found = Checked(proposer, Oracle(model, ids, pard))
    driver = Driver(found, traits, target)
    driver.run(lives())
    assert driver.problems == []
    assert len(found.compared) > 20
    assert found.oracle.margin > 1e-4, "no draft rests on rounding"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "gemma2", "gpt_oss", "deepseek_v3"])
def test_greedy_drafts_are_those_of_the_stock_model_read_anew(family: str, tmp_path: Path) -> None:
    checked(draft(tmp_path / "d", family), Ids.same(VOCAB))


def test_all_drafts_of_one_pass_are_those_of_mask_tokens_behind_the_text(tmp_path: Path) -> None:
    model = patch(draft(tmp_path / "d", "qwen3"), pard_token=MASK)
    masked = checked(model, Ids.same(VOCAB), pard=MASK, parallel_drafting=True)
    assert {count for _, count in masked.compared} >= {1, 4}


def test_a_checkpoint_that_calls_itself_pard_drafts_in_one_pass_unless_told_not_to(tmp_path: Path) -> None:
    model = patch(draft(tmp_path / "d"), pard_token=MASK, spd_type="pard")
    checked(model, Ids.same(VOCAB), pard=MASK)
    checked(model, Ids.same(VOCAB), parallel_drafting=False)


def test_ids_of_one_side_alone_are_read_as_unknown_and_never_drafted(tmp_path: Path) -> None:
    """Padded tables of three sizes: the target's 128, the drafter's 120; the two tokenizers know 118 and 112 ids."""
    target = FakeTarget(tiny_target("llama"), tokenizer=numbered(f"w{i}" for i in range(118)))
    names = [f"w{i}" for i in range(110)]
    tokenizer = numbered({**dict(enumerate(names)), 118: "mine", 119: "unk"}, unk="unk")
    model = draft(tmp_path / "d", vocab_size=120, tokenizer=tokenizer)
    shared = {i: i for i in range(110)}
    checked(model, Ids(shared, shared, unknown=119), target)


def test_tokens_that_both_tokenizers_have_are_drafted_under_the_targets_ids(tmp_path: Path) -> None:
    """TLI (arXiv 2502.05202): every second word is shared, under other ids; the rest is read as unknown."""
    target = FakeTarget(tiny_target("llama"), tokenizer=numbered(f"w{i}" for i in range(VOCAB)))
    order = [i for i in range(VOCAB) if i % 2] + [VOCAB + i for i in range(20)]
    names = {place: f"w{i}" for place, i in enumerate(order[::-1])}
    tokenizer = numbered({**names, 100: "unk"}, unk="unk")
    model = saved(tmp_path / "d", tiny_target("gemma3", seed=3, vocab_size=104), tokenizer)
    to_draft = {int(name[1:]): place for place, name in names.items() if int(name[1:]) < VOCAB}
    back = {place: i for i, place in to_draft.items()}
    assert len(to_draft) == 64
    found = checked(model, Ids(to_draft, back, unknown=100), target, use_heterogeneous_vocab=True)
    assert found.compared


def test_tokens_shared_by_text_are_drafted_in_one_pass_as_well(tmp_path: Path) -> None:
    target = FakeTarget(tiny_target("llama"), tokenizer=numbered(f"w{i}" for i in range(VOCAB)))
    tokenizer = numbered({**{i: f"w{VOCAB - 1 - i}" for i in range(120)}, 120: "unk"}, unk="unk")
    model = patch(draft(tmp_path / "d", tokenizer=tokenizer), pard_token=MASK)
    to_draft = {VOCAB - 1 - i: i for i in range(120)}
    ids = Ids(to_draft, {place: i for i, place in to_draft.items()}, unknown=120)
    checked(model, ids, target, pard=MASK, use_heterogeneous_vocab=True, parallel_drafting=True)


def test_fewer_drafts_of_one_pass_are_the_first_of_the_whole_pass(tmp_path: Path) -> None:
    """Rows of mask tokens see only those before them, so a shorter pass drafts the same."""
    model = patch(draft(tmp_path / "d"), pard_token=MASK, spd_type="pard")
    drafted = []
    for limit in (5, 4, 3, 2, 1):
        proposer, _ = drafter(model, TARGET, 5)
        request = FakeRequest("x", list(range(3, 20)))
        proposer.start(request)
        drafted.append(asked(proposer, [request], limit).tokens.tolist())
        proposer.close()
    assert [len(tokens) for tokens in drafted] == [5, 4, 3, 2, 1]
    assert all(tokens == drafted[0][: len(tokens)] for tokens in drafted)
