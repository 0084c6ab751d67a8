"""A head is measured in the engine on files and on held-out prompts, and the page of a run is whole by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from words import model_folder

from specdec_testing.commands import run_specdec
from specdec_train.data import Collected, Manifest, Writer, is_held_out
from specdec_train.evaluate.runs import open_run

LOG = [
    {"ids": 768, "step": 1, "loss": 5.0, "agreement": None, "seconds": 1.0},
    {"ids": 1536, "step": 2, "loss": 4.0, "agreement": [0.25, 0.125], "seconds": 2.0},
    {"ids": 2304, "step": 3, "loss": 3.5, "agreement": None, "seconds": 3.0},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(model_folder(tmp_path_factory.mktemp("target") / "model"))


def write_head(folder: Path, model: Path) -> Path:
    """Write an EAGLE head with random weights."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    width = json.loads((model / "config.json").read_text())["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj": (width, width) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (64, width), "mlp.up_proj": (64, width), "mlp.down_proj": (width, 64)}
    tensors = {f"layers.0.{name}.weight": torch.randn(shape) / 8 for name, shape in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(width)
    tensors["fc.weight"] = torch.randn(width, 2 * width) / 8
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": width, "num_attention_heads": 4, "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_data(folder: Path, model: Path) -> Path:
    """Write collected data of which two requests are held out."""
    config = json.loads((model / "config.json").read_text())
    width = config["hidden_size"]
    manifest = Manifest(
        target="acme/tiny",
        target_config=config,
        hidden_size=width,
        aux_layers=(),
        dtype="bfloat16",
        seed=0,
        tasks=("open",),
    )
    prompts = ([5 + i, 6, 7 + i] for i in range(200))
    chosen = [*[prompt for prompt in prompts if is_held_out(prompt)][:2], [5, 6, 7]]
    states = torch.zeros(5, width), torch.zeros(5, 0)
    Writer(folder, manifest).write([Collected([*prompt, 8, 9], 3, 0, *states) for prompt in chosen])
    return folder


@pytest.fixture
def run_folder(tmp_path: Path, model: Path) -> Path:
    folder = tmp_path / "run"
    write_head(folder / "export", model)
    data = write_data(tmp_path / "data", model)
    (folder / "run.json").write_text(json.dumps({"method": "eagle", "data": str(data), "seed": 0}))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    lines = [{"prompt": "the cat sat on", "task": "cats"}, {"prompt": "a hat and", "task": "hats"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def evaluate(*arguments: Any) -> Any:
    return run_specdec("train", "evaluate", *map(str, arguments), "--max-tokens", "8", SPECDEC_KERNELS="reference")


def test_a_run_gets_figures_by_task_and_a_page(run_folder: Path, model: Path, questions: Path) -> None:
    done = evaluate(run_folder, model, "--prompts", questions)
    assert done.returncode == 0, done.stderr
    result = json.loads((run_folder / "evaluation.json").read_text())
    plain, draft = result["summary"]["arms"]
    assert (plain["arm"], draft["arm"]) == ("plain", "draft")
    assert result["summary"]["tasks"] == ["cats", "hats", "held-out"]
    assert result["summary"]["prompts"] == 4
    assert set(draft["acceptance_length_by_task"]) == {"all", "cats", "hats", "held-out"}
    assert draft["acceptance_length_by_task"]["cats"] >= 1
    assert draft["drafted_per_pos"][0] > 0 and len(draft["drafted_per_pos"]) == 3
    assert result["agreement"]["held_out"] == [0.25, 0.125]
    page = (run_folder / "report.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    for words in ("Training", "thousand ids trained on", "depth 2", "held-out", "Accepted length by task"):
        assert words in page
    assert page.count("<svg") == 3  # loss, agreement, accepted length
    assert "agreement by depth, held out: 0.250 0.125" in done.stdout


def test_a_draft_is_measured_without_a_run(tmp_path: Path, model: Path, questions: Path) -> None:
    head = write_head(tmp_path / "head", model)
    out = tmp_path / "out.json"
    done = evaluate(head, model, "--prompts", questions, "--k", 2, "--json", out, "--html", tmp_path / "out.html")
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["agreement"]["held_out"] is None
    assert len(result["summary"]["arms"][1]["drafted_per_pos"]) == 2
    assert "Training" not in (tmp_path / "out.html").read_text()


def test_prompts_of_a_file_without_tasks_have_its_name_for_one(tmp_path: Path, model: Path) -> None:
    head, file = write_head(tmp_path / "head", model), tmp_path / "mine.txt"
    file.write_text("the cat sat\n")
    done = evaluate(head, model, "--prompts", file, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["summary"]["tasks"] == ["mine"]


def test_with_nothing_to_answer_the_error_names_what_to_give(tmp_path: Path, model: Path) -> None:
    done = evaluate(write_head(tmp_path / "head", model), model)
    assert done.returncode == 2 and "--prompts FILE, or --data FOLDER" in done.stderr


def test_a_line_of_the_log_that_is_none_is_named(run_folder: Path) -> None:
    with (run_folder / "log.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 4 is no line of a log"):
        open_run(run_folder)


def test_an_exported_head_has_a_card_and_is_run_with_its_k(run_folder: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    done = run_specdec("train", "export", str(run_folder), "--out", str(out), "--k", "2", "--about", "Small.")
    assert done.returncode == 0, done.stderr
    card = {"target": "acme/tiny", "method": "eagle", "num_speculative_tokens": 2, "about": "Small."}
    assert json.loads((out / "draft.json").read_text()) == card
    explained = run_specdec("explain", str(model), "-sc.model", str(out), "--json")
    assert json.loads(explained.stdout)["num_speculative_tokens"] == 2
    again = run_specdec("train", "export", str(run_folder), "--out", str(out))
    assert again.returncode == 2 and "is there already" in again.stderr
