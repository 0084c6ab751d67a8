"""A collection that is killed at any moment goes on, and ends with the bytes of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from collecting import Stopped, StopsAt, collect, contents

from specdec_core.errors import RequestError
from specdec_train.collect import session as session_module
from specdec_train.data import writing as writing_module

SHARDS = 4
WRITES = ("save_file", "hash_of")
MAIN = "import sys; from specdec_core.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """The files of a collection that nobody stopped, and how many steps of decoding it took."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    steps = collect(model, folder, SHARDS).steps
    return contents(folder), steps


@pytest.mark.slow
def test_ten_kills_at_random_steps_change_no_byte(
    model: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path
) -> None:
    expected, steps = whole
    rng, folder, stopped = Random(3), tmp_path / "data", 0
    for _ in range(10):
        try:
            collect(model, folder, SHARDS, StopsAt(rng.randrange(1, steps // 3)))
            break
        except Stopped:
            stopped += 1
    collect(model, folder, SHARDS)
    assert stopped >= 5
    assert contents(folder) == expected


@pytest.mark.parametrize("what", ["_write_texts", *(pytest.param(w, marks=pytest.mark.slow) for w in WRITES)])
def test_a_kill_while_a_shard_is_written_changes_no_byte(
    what: str, model: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = whole
    module = session_module if what == "_write_texts" else writing_module
    real, calls = getattr(module, what), 0

    def stops(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Stopped
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, what, stops)
        with pytest.raises(Stopped):
            collect(model, tmp_path / "data", SHARDS)
    collect(model, tmp_path / "data", SHARDS)
    assert contents(tmp_path / "data") == expected


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on(model: Path, tmp_path: Path) -> None:
    def command(folder: Path) -> list[str]:
        options = "--ids 400 --max-tokens 6 --shard-requests 5 --together 5 --context 200 --share question=300"
        return [sys.executable, "-c", MAIN, "train", "collect", str(model), "--out", str(folder), *options.split()]

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPECDEC_KERNELS": "reference"}
    subprocess.run(command(tmp_path / "whole"), env=environment, check=True, capture_output=True)
    with subprocess.Popen(command(tmp_path / "data"), env=environment, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (tmp_path / "data" / "shard-00000.safetensors").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    subprocess.run(command(tmp_path / "data"), env=environment, check=True, capture_output=True)
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")


def test_going_on_with_other_settings_is_refused(
    model: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, data in whole[0].items():
        (folder / name).write_bytes(data)
    with pytest.raises(RequestError, match=r"temperature 0\.7 and not 0\.9"):
        collect(model, folder, SHARDS + 1, temperature=0.9)
    (folder / "shard-00001.jsonl").unlink()
    with pytest.raises(RequestError, match=r"shard-00001\.jsonl cannot be read"):
        collect(model, folder, SHARDS + 1)


def test_no_prompt_comes_twice_and_repeated_prompts_of_a_user_once(model: Path, tmp_path: Path) -> None:
    from specdec_train.data import Data

    asked = ["the cat sat", "a hat", "the cat sat", "the mat and a hat"] * 3
    progress = collect(model, tmp_path / "data", 2, prompts=asked)
    data = Data(tmp_path / "data")
    found = [tuple(r.ids[: r.prompt].tolist()) for held_out in (True, False) for r in data.requests(held_out)]
    assert len(found) == len(set(found)) == 3
    assert progress.dropped["prompt seen before"] == 9
