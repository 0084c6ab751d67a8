"""A run that is killed at any moment and resumed ends with the weights and the log of one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_data import begin, collect, model

from specdec_core.errors import RequestError
from specdec_train.data import Data
from specdec_train.fit import files, loop
from specdec_train.fit.log import read_log

METHODS = {
    "eagle3": {"draft_vocab": 48, "intermediate": 40},
    "medusa": {"draft_vocab": 48},
    "mtp": {"loss_vocab": 48, "intermediate": 40},
}


class Killed(Exception):
    """Stands for the end of the process."""


def outcome(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return all tensors of the last checkpoint and of the head, and the log without times."""
    state = files.read_checkpoint(folder)
    assert state is not None
    moments = {
        f"{number}.{i}.{name}": value
        for number, optimizer in enumerate(state["optimizers"])
        for i, own in optimizer["state"].items()
        for name, value in own.items()
    }
    log = [{key: value for key, value in line.items() if key != "seconds"} for line in read_log(folder)]
    return {**state["module"], **moments}, log


def assert_same(folder: Path, other: Path) -> None:
    (tensors, log), (wanted, wanted_log) = outcome(folder), outcome(other)
    assert tensors.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(tensors[name], wanted[name])] == []
    assert log == wanted_log
    for name in ("config.json", "model.safetensors"):
        assert (folder / "export" / name).read_bytes() == (other / "export" / name).read_bytes()


@pytest.mark.parametrize("method", [pytest.param(m, marks=pytest.mark.slow) if m != "eagle3" else m for m in METHODS])
def test_a_run_killed_at_random_moments_ends_like_one_that_was_not(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, keys = collect(tmp_path / "data"), {"method": method, "options": METHODS[method]}
    whole = begin(data, tmp_path / "whole", **keys).run()
    rng, kills = np.random.default_rng(0), 0

    def tell(report: Any) -> None:
        if kills < 10 and rng.random() < 0.5:
            raise Killed

    while True:
        monkeypatch.setattr(loop, "SAVE_EVERY", float(rng.choice([0.0, 1000.0])))
        try:
            last = begin(data, tmp_path / "killed", tell, **keys).run()
            break
        except Killed:
            kills += 1
    assert kills == 10
    assert last.place.ids == whole.place.ids >= 4000
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("file", ["checkpoint.pt", "model.safetensors", "log.jsonl", "run.json"])
def test_a_run_killed_while_a_file_is_written_ends_like_one_that_was_not(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = collect(tmp_path / "data")
    begin(data, tmp_path / "whole", ids=1500).run()
    replace, times = Path.replace, 0

    def killed(self: Path, target: Path) -> Path:
        nonlocal times
        if target.name == file:
            times += 1
            if times in (1, 3):
                self.write_bytes(self.read_bytes()[:100])
                raise Killed
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    for _ in range(3):
        try:
            begin(data, tmp_path / "killed", ids=1500).run()
        except Killed:
            continue
    monkeypatch.undo()
    begin(data, tmp_path / "killed", ids=1500).run()
    assert times >= 1
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_shards_that_came_later_are_not_read_by_a_run_that_was_begun_before(tmp_path: Path) -> None:
    data = collect(tmp_path / "data")
    begin(data, tmp_path / "whole").run()
    manifest = tmp_path / "data" / "manifest.json"
    both = manifest.read_text()
    first = json.loads(both)
    first["shards"] = first["shards"][:1]
    manifest.write_text(json.dumps(first))
    one = Data(tmp_path / "data")
    begin(one, tmp_path / "one").run()

    def tell(report: Any) -> None:
        if report.place.step == 7:
            raise Killed

    with pytest.raises(Killed):
        begin(one, tmp_path / "killed", tell).run()
    manifest.write_text(both)
    begin(Data(tmp_path / "data"), tmp_path / "killed").run()
    assert_same(tmp_path / "killed", tmp_path / "one")
    assert not torch.equal(outcome(tmp_path / "one")[0]["fc.weight"], outcome(tmp_path / "whole")[0]["fc.weight"])


def test_minutes_become_a_number_of_ids_once(tmp_path: Path) -> None:
    data = collect(tmp_path / "data")
    first = begin(data, tmp_path / "run", ids=0, minutes=0.05)
    again = begin(data, tmp_path / "run", ids=0, minutes=0.05)
    assert first.settings == again.settings
    assert first.settings.ids > 0


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_what_is_measured_before_a_run_leaves_the_first_weights(optimizer: str, tmp_path: Path) -> None:
    data = collect(tmp_path / "data")
    measured = begin(data, tmp_path / "minutes", ids=0, minutes=0.05, optimizer=optimizer)
    plain = begin(data, tmp_path / "ids", optimizer=optimizer)
    found, wanted = measured.trainer.module.state_dict(), plain.trainer.module.state_dict()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
    assert all(p.grad is None for p in measured.trainer.module.parameters())


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    data = collect(tmp_path / "data")
    begin(data, tmp_path / "run").run()
    before = {file: file.read_bytes() for file in (tmp_path / "run" / "export").iterdir()}
    report = begin(data, tmp_path / "run").run()
    assert report.place.ids >= 4000
    assert {file: file.read_bytes() for file in (tmp_path / "run" / "export").iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": 1e-4}, "lr 0.003 and not 0.0001"),
        ({"optimizer": "adamw"}, "optimizer 'muon' and not 'adamw'"),
        ({"options": {"draft_vocab": 40}}, "options"),
        ({"seed": 4}, "seed 0 and not 4"),
        ({"ids": 5000}, "ids 4000 and not 5000"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    data = collect(tmp_path / "data")
    begin(data, tmp_path / "run")
    with pytest.raises(RequestError, match=said):
        begin(data, tmp_path / "run", **changes)


def test_a_spoilt_checkpoint_is_named(tmp_path: Path) -> None:
    data = collect(tmp_path / "data")
    begin(data, tmp_path / "run", ids=300).run()
    file = tmp_path / "run" / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(RequestError, match=r"checkpoint\.pt cannot be read"):
        begin(data, tmp_path / "run", ids=300)


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_what_the_command_resumes(tmp_path: Path) -> None:
    """With the real signal, at moments that nothing chooses."""
    data = collect(tmp_path / "data")
    model().save_pretrained(tmp_path / "target")

    def command(out: str) -> list[str]:
        words = ["train", "fit", str(data.folder), "--method", "eagle3", "--out", str(tmp_path / out), "--epochs", "8"]
        words += ["--model", str(tmp_path / "target"), "--draft-vocab", "48", "--intermediate", "40", "--threads", "1"]
        words += ["--batch-ids", "96", "--window", "48", "--evaluate-every", "300"]
        return [sys.executable, "-m", "specdec_core", *words]

    subprocess.run(command("whole"), check=True, capture_output=True)
    for lines in (2, 9):
        process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(read_log(tmp_path / "killed")) < lines:
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert process.returncode == -signal.SIGKILL
    subprocess.run(command("killed"), check=True, capture_output=True)
    assert_same(tmp_path / "killed", tmp_path / "whole")
