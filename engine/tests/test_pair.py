"""`specdec plugins doctor --pair` names what is wrong with a pair: by its files, and by what a shift makes better."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from words import model_folder

from specdec_core import hookimpl
from specdec_core.config.resolve import resolve
from specdec_core.draft import BatchView
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_engine.bench.arms import ModelOptions
from specdec_engine.pair.findings import look
from specdec_engine.pair.session import Examination, Report
from specdec_engine.verify.default_prompts import own_prompts
from specdec_testing.commands import run_specdec
from specdec_testing.stubs import Stub

TOKENS = 12
PROMPTS = own_prompts()[:3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("pair") / "model")


@pytest.fixture(scope="module")
def texts(model: Path) -> dict[tuple[int, ...], list[int]]:
    """All ids of each prompt with its greedy answer, by the prompt's ids."""
    with LLM(model) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        outputs = llm.generate([prompt.text for prompt in PROMPTS], params)
    return {
        tuple(output.prompt_token_ids): [*output.prompt_token_ids, *output.outputs[0].token_ids] for output in outputs
    }


class Oracle(Stub):
    """Knows the texts, and drafts them where `reads` finds the states that it was made for; else the id 7."""

    def __init__(self, texts: dict[tuple[int, ...], list[int]], target: Any, reads: Callable[..., bool], off: int):
        super().__init__()
        self.texts, self.target, self.reads, self.off = texts, target, reads, off

    def row(self, batch: BatchView, i: int) -> list[int]:
        request = batch.request(i)
        text = self.texts[tuple(request.tokens[: request.prompt_len].tolist())]
        place = len(request.tokens) + self.off
        return text[place : place + 3] if self.reads(self.target, batch, i) else [7, 7, 7]


def always(target: Any, batch: BatchView, i: int) -> bool:
    return True


def never(target: Any, batch: BatchView, i: int) -> bool:
    return False


def embeddings(shift: int) -> Callable[..., bool]:
    """Whether the last aux row is the embedding, which is R_0, of the id at its position + shift."""

    def reads(target: Any, batch: BatchView, i: int) -> bool:
        assert batch.rows is not None and batch.rows.aux is not None
        last = int((batch.rows.request == i).nonzero()[0][-1])
        token = batch.request(i).tokens[int(batch.rows.positions[last]) + shift]
        return bool(torch.equal(batch.rows.aux[last, 0], target.embed(torch.tensor([int(token)]))[0]))

    return reads


def examine(
    model: Path,
    texts: dict[tuple[int, ...], list[int]],
    traits: MethodTraits,
    reads: Callable[..., bool] = always,
    off: int = 0,
) -> Report:
    plugin = SimpleNamespace(
        specdec_method_traits=hookimpl(lambda ctx: traits),
        specdec_make_proposer=hookimpl(lambda ctx, build: Oracle(texts, build.target, reads, off)),
    )
    options = ModelOptions(model=str(model), plugins={"oracle": plugin})  # type: ignore[dict-item]
    examination = Examination(model=options, draft="oracle", more={}, prompts=PROMPTS, max_tokens=TOKENS, chat=False)
    return examination.run()


AUX = MethodTraits(rows="all", aux_layers=(1,))


def test_a_pair_that_fits_is_good_and_gets_no_hint(model: Path, texts: Any) -> None:
    report = examine(model, texts, MethodTraits())
    assert (report.verdict, report.hints) == ("good", [])
    assert report.tried[0].first == 1.0
    assert list(report.lines())[-1] == "verdict: good"


def test_aux_layers_that_are_one_too_high_are_named_with_the_right_ones(model: Path, texts: Any) -> None:
    report = examine(model, texts, AUX, embeddings(0))
    assert report.verdict == "bad"
    (hint,) = report.hints
    assert "the aux layers look shifted by one" in hint and "after layers [0]" in hint
    assert [each.name for each in report.tried] == [
        "as configured",
        "aux layers -1",
        "aux layers +1",
        "states of the position before",
    ]


def test_states_that_are_one_position_too_late_are_named(model: Path, texts: Any) -> None:
    report = examine(model, texts, replace(AUX, aux_layers=(0,)), embeddings(-1))
    (hint,) = report.hints
    assert "the positions look shifted by one" in hint and "one position too late" in hint


def test_drafts_that_begin_at_the_newest_id_are_named(model: Path, texts: Any) -> None:
    report = examine(model, texts, MethodTraits(), off=-1)
    assert report.verdict in ("bad", "weak")
    assert any("one position before" in hint for hint in report.hints)


def test_drafts_that_are_always_one_id_are_named(model: Path, texts: Any) -> None:
    report = examine(model, texts, MethodTraits(), never)
    assert report.verdict == "bad"
    assert any("100% of them are the id 7" in hint for hint in report.hints)


def test_the_command_prints_the_report_of_a_method_without_a_checkpoint(model: Path) -> None:
    keys = {"prompt_lookup_min": 1, "prompt_lookup_max": 2}
    given = ("-sc", json.dumps(keys), "--max-tokens", 16, "--json")
    done = run_specdec("plugins", "doctor", "--pair", model, "ngram", *given, SPECDEC_KERNELS="reference")
    found = json.loads(done.stdout)
    assert done.returncode == int(found["verdict"] not in ("good", "weak")), done.stderr
    assert found["tried"][0]["name"] == "as configured" and found["tried"][0]["drafted"] > 0
    assert {finding["topic"] for finding in found["findings"]} == {"method", "states", "checkpoint"}


def test_a_pair_that_is_refused_cannot_run_and_every_reason_is_listed(model: Path) -> None:
    given = ("-sc", json.dumps({"prompt_lookup_min": 5, "prompt_lookup_max": 2, "nonsense": 1}))
    done = run_specdec("plugins", "doctor", "--pair", model, "ngram", *given)
    assert done.returncode == 1
    assert "verdict: cannot run" in done.stdout and "nonsense" in done.stdout


def draft_of(model: Path, folder: Path, changes: dict[str, Any]) -> Path:
    """A copy of the model as a draft, with other keys in its config.json."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False)
    loaded.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def states(model: Path, draft: Path) -> dict[str, str]:
    """What the files tell, by topic."""
    target = TargetInfo.from_folder(model)
    config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2}
    found = look(target, resolve(config, target, Registry(Catalog.discover())))
    return {finding.topic: f"{finding.state}: {finding.text}" for finding in found}


def test_a_copy_of_the_target_fits_in_every_respect(model: Path, tmp_path: Path) -> None:
    found = states(model, draft_of(model, tmp_path / "draft", {}))
    assert {"method", "states", "hidden size", "positions", "dtype", "tokenizer", "special tokens"} <= set(found)
    assert all(text.startswith(("ok", "note: the target takes")) for text in found.values()), found


def test_another_dtype_and_other_special_ids_are_noted(model: Path, tmp_path: Path) -> None:
    draft = draft_of(model, tmp_path / "draft", {"dtype": "bfloat16"})
    file = draft / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token": "<pad>"}))
    found = states(model, draft)
    assert found["dtype"].startswith("note: ") and "bfloat16" in found["dtype"]
    assert found["special tokens"].startswith("note: eos_token_id")
