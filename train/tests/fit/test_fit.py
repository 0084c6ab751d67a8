"""`specdec train fit` as a whole: heads learn, strangers' heads too, and what does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toy_trainer
from small_data import begin, collect, model

from specdec_core.errors import RequestError, SpecdecError
from specdec_engine import LLM, SamplingParams
from specdec_testing.commands import run_specdec
from specdec_train.fit.log import read_log
from specdec_train.fit.optimizers import DEFAULTS

TOY = str(Path(toy_trainer.__file__))


def test_agreement_on_held_out_texts_rises_and_the_loss_falls(tmp_path: Path) -> None:
    report = begin(collect(tmp_path / "data"), tmp_path / "run", ids=24000, evaluate_every=6000).run()
    log = read_log(tmp_path / "run")
    first, last = log[0]["agreement"], log[-1]["agreement"]
    assert report.agreement == last
    assert len(last) == 3
    assert all(after > before for before, after in zip(first, last, strict=True))
    assert last[0] > 0.9
    assert log[-1]["loss"] < 0.6 * log[1]["loss"]
    assert [line["ids"] for line in log] == sorted({line["ids"] for line in log})


def test_a_head_of_a_strangers_plugin_is_trained_and_drafts(tmp_path: Path) -> None:
    data = collect(tmp_path / "data", aux=())
    plugins = {"table": TOY}
    report = begin(data, tmp_path / "run", method="table", options={}, plugins=plugins, ids=20000).run()
    assert report.agreement == [1.0]
    ids = data.requests()[0].ids[:8].tolist()
    config = {"method": "table", "model": str(tmp_path / "run" / "export"), "num_speculative_tokens": 1}
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with LLM(hf_model=model(), speculative_config=config, plugins=plugins, strict=True) as llm:
        (output,) = llm.generate([{"prompt_token_ids": ids}], params)
    assert output.metrics.drafted > 0


def test_the_command_trains_and_resumes(tmp_path: Path) -> None:
    data, target = collect(tmp_path / "data", aux=()), tmp_path / "target"
    model().save_pretrained(target)
    words = ["train", "fit", str(data.folder), "--method", "table", "--out", str(tmp_path / "run"), "--epochs", "2"]
    words += ["--model", str(target), "--plugin", f"table={TOY}", "--option", "gain=0.02", "--threads", "1"]
    first = run_specdec(*words)
    assert first.returncode == 0, first.stderr
    assert "agreement by depth on held-out texts" in first.stdout
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert settings["ids"] == 2 * sum(len(request.ids) for request in data.requests())
    left_out = DEFAULTS[settings["optimizer"]]
    assert (settings["lr"], settings["lanes"] * settings["width"]) == (left_out.lr, left_out.batch_ids)
    again = run_specdec(*words)
    assert "resuming the run" in again.stdout
    assert run_specdec(*words, "--lr", "0.5").returncode != 0


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another target": ({"vocab_size": 131}, {}, "the data are of another target, 'tiny' with vocab_size 131"),
    "no states": ({"aux": ()}, {}, r"the data have none; collect them anew with --aux-layers 2,4,5"),
    "unknown option": (
        {},
        {"options": {"draft_vocabulary": 4}},
        "draft_vocabulary: unknown key; the nearest is draft_vocab",
    ),
    "bad value": ({}, {"options": {"steps": 0}}, "steps: .*greater than or equal to 1, got 0"),
    "no trainer": ({}, {"method": "eagle", "options": {}}, "'eagle' cannot be trained"),
    "unknown method": ({}, {"method": "eagle4", "options": {}}, "no proposer named 'eagle4'"),
    "too many neurons": ({}, {"options": {"intermediate": 4000}}, "give at most"),
    "lost shards": ({}, {"shards": ("0" * 64,)}, "no longer has 1 of the shards"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_written(case: str, tmp_path: Path) -> None:
    collected, changes, said = REFUSED[case]
    data = collect(tmp_path / "data", **collected)
    with pytest.raises(SpecdecError, match=said):
        begin(data, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_files_is_not_taken(tmp_path: Path) -> None:
    data = collect(tmp_path / "data")
    with pytest.raises(RequestError, match=r"no run\.json of a run"):
        begin(data, tmp_path / "data")
