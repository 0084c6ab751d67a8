"""The command `specdec train collect`: its forecast, its table, and one error for each bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_testing.commands import run_specdec
from specdec_train.data import Data

QUICK = ("--max-tokens", "8", "--together", "4", "--shard-requests", "5", "--context", "200")


def test_the_forecast_tells_bytes_and_writes_nothing(model: Path, tmp_path: Path) -> None:
    done = run_specdec("train", "collect", model, "--out", tmp_path / "data", "--ids", "1000000", *QUICK, "--dry-run")
    assert done.returncode == 0, done.stderr
    width = 32
    each = 4 + 2 * width * 3
    assert (
        f"an id takes {each:,} bytes" in done.stdout
        and "states: the last one and those after layers 1, 2" in done.stdout
    )
    assert not (tmp_path / "data").exists()


def test_prompts_of_a_file_are_answered_and_the_table_counts_them(model: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "prompts.txt", tmp_path / "data"
    file.write_text("the cat sat on the mat\na hat and a cat\nthe mat the hat\n")
    done = run_specdec("train", "collect", model, "--out", out, "--prompts", file, *QUICK, "--aux-layers", "none")
    assert done.returncode == 0, done.stderr
    assert "given" in done.stdout and "3 requests" in done.stdout
    data = Data(out)
    assert data.manifest.aux_layers == () and data.manifest.requests == 3
    assert all(request.aux.shape == (len(request), 0) for request in data.requests())
    again = run_specdec("train", "collect", model, "--out", out, "--prompts", file, *QUICK, "--aux-layers", "none")
    assert again.returncode == 0 and again.stdout == done.stdout and "goes on behind 1 shards" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--aux-layers", "1,9"), "expected numbers of 0 .. 2"),
        (("--aux-layers", "x"), "expected numbers of 0 .. 2"),
        (("--context", "100000"), "above the target's own limit"),
        (("--context", "40", "--max-tokens", "30"), "leaves 7 of 40 positions"),
        (("--share", "mathe=2"), "there is no task 'mathe'"),
        (("--prompts", "nowhere.txt"), "there is no such file"),
        (("--together", "0"), "--together"),
        (("--greedy", "2"), "--greedy"),
    ],
)
def test_bad_input_is_one_error_that_names_the_option(
    words: tuple[str, ...], said: str, model: Path, tmp_path: Path
) -> None:
    done = run_specdec("train", "collect", model, "--out", tmp_path / "data", *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "data").exists()


def test_a_target_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = run_specdec("train", "collect", tmp_path / "nothing", "--out", tmp_path / "data")
    assert done.returncode == 2 and "nothing" in done.stderr and not (tmp_path / "data").exists()


def test_a_target_without_a_chat_template_goes_on_with_documents(tmp_path: Path) -> None:
    from words import model_folder

    model = model_folder(tmp_path / "model", chat_template=None)
    out = tmp_path / "data"
    done = run_specdec("train", "collect", model, "--out", out, "--ids", "60", *QUICK, "--share", "open=1000")
    assert done.returncode == 0, done.stderr
    assert "open" in {request.task for held_out in (True, False) for request in Data(out).requests(held_out)}
