"""Code that comes with a checkpoint runs only with permission, each checkpoint's its own, and nobody is asked."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from words import model_folder

from specdec_core.cli.main import main
from specdec_core.errors import ConfigError, TargetError
from specdec_engine import LLM, SamplingParams

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path({marker!r}).write_text("ran")


class OwnConfig(LlamaConfig):
    model_type = "own_llama"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
MODEL = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
PARAMS = SamplingParams(temperature=0.0, max_tokens=4)


@pytest.fixture(autouse=True)
def stdin_says_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whoever reads the answer finds a yes; code that runs is copied to a folder of the test."""
    answer = io.StringIO("y\nyes\n")
    monkeypatch.setattr(sys, "stdin", answer)
    modules = str(tmp_path / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
    monkeypatch.syspath_prepend(modules)
    yield
    assert answer.tell() == 0


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Is there once code of a checkpoint has run."""
    return tmp_path / "marker"


def edit(folder: Path, file: str, **keys: Any) -> None:
    config = {**json.loads((folder / file).read_text()), **keys}
    (folder / file).write_text(json.dumps(config))


def folder_of(place: Path, marker: Path, kind: str) -> Path:
    """A whole model whose configuration, class, tokenizer or `generate` is its own, or also transformers' ("both")."""
    folder = model_folder(place)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    if kind in ("config", "both"):
        edit(folder, "config.json", auto_map=MODEL, **({} if kind == "both" else {"model_type": "own_llama"}))
    elif kind == "class":
        edit(folder, "config.json", auto_map={"AutoModelForCausalLM": MODEL["AutoModelForCausalLM"]}, model_type="vit")
    elif kind == "tokenizer":
        named = {"AutoTokenizer": ["own.OwnTokenizer", None]}
        edit(folder, "tokenizer_config.json", auto_map=named, tokenizer_class="OwnTokenizer")
    elif kind == "generate":
        (folder / "custom_generate").mkdir()
        (folder / "custom_generate/generate.py").write_text((folder / "own.py").read_text() + "generate = None\n")
    return folder


NAMED = {
    "config": r"config\.json names auto_map\.AutoConfig: own\.OwnConfig.*model_type 'own_llama'",
    "class": r"config\.json names auto_map\.AutoModelForCausalLM: own\.OwnForCausalLM.*model_type 'vit'",
    "tokenizer": r"tokenizer_config\.json names auto_map\.AutoTokenizer: .*own\.OwnTokenizer",
    "generate": r"custom_generate/generate\.py replaces `generate`",
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_model_that_needs_code_is_refused_naming_file_entry_and_option(
    tmp_path: Path, marker: Path, kind: str
) -> None:
    folder = folder_of(tmp_path / "model", marker, kind)
    with pytest.raises(TargetError, match=NAMED[kind]) as raised:
        LLM(folder)
    assert "trust_remote_code=True (command line: --trust-remote-code)" in str(raised.value)
    assert not marker.exists()


def test_a_class_of_transformers_is_used_without_permission_in_place_of_the_checkpoints(
    tmp_path: Path, marker: Path
) -> None:
    folder = folder_of(tmp_path / "model", marker, "both")
    with LLM(folder) as llm:
        assert type(llm.model).__module__.startswith("transformers.")
        assert llm.generate("the cat", PARAMS)[0].outputs[0].token_ids
    assert not marker.exists()


def test_with_permission_it_runs(tmp_path: Path, marker: Path) -> None:
    folder = folder_of(tmp_path / "model", marker, "config")
    with LLM(folder, trust_remote_code=True) as llm:
        assert type(llm.model).__name__ == "OwnForCausalLM"
    assert marker.exists()
    with pytest.raises(TargetError, match="trust_remote_code='yes': expected True or False"):
        LLM(folder, trust_remote_code="yes")  # type: ignore[arg-type]


def test_permission_for_the_target_is_none_for_the_draft_model_and_the_reverse(tmp_path: Path, marker: Path) -> None:
    plain = model_folder(tmp_path / "plain")
    own = folder_of(tmp_path / "own", marker, "config")
    config = {"method": "draft_model", "model": str(own), "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match=r'own_llama.*allow it with "trust_remote_code": true in the speculative'):
        LLM(plain, config, trust_remote_code=True)
    with pytest.raises(TargetError, match=r"allow it with trust_remote_code=True \(command line"):
        LLM(own, {**config, "model": str(plain), "trust_remote_code": True})
    tokens = folder_of(tmp_path / "tokens", marker, "tokenizer")
    with pytest.raises(TargetError, match=r'AutoTokenizer.*allow it with "trust_remote_code": true'):
        LLM(plain, {**config, "model": str(tokens)}, trust_remote_code=True)
    assert not marker.exists()


def test_explain_refuses_what_generate_refuses(
    tmp_path: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}']
    for kind in NAMED:
        folder = folder_of(tmp_path / kind, marker, kind)
        arguments = ["explain", "--model", str(folder), *config]
        assert main(arguments) == 2
        assert "allow it with trust_remote_code=True" in capsys.readouterr().err
        assert main([*arguments, "--trust-remote-code"]) == 0
    assert main(["explain", "--model", str(folder_of(tmp_path / "both", marker, "both")), *config]) == 0
    assert not marker.exists()


@pytest.mark.slow
def test_the_command_asks_nobody_and_takes_its_own_option(tmp_path: Path, marker: Path) -> None:
    folder = folder_of(tmp_path / "model", marker, "config")
    arguments = ["-m", "specdec_core", "generate", str(folder), "--prompt", "the cat", "--max-tokens", "2"]
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "SPECDEC_KERNELS": "reference"}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        done = [sys.executable, *arguments, *more]
        return subprocess.run(done, input="y\nyes\n" * 9, env=environment, capture_output=True, text=True, timeout=300)

    refused = run()
    assert refused.returncode == 2
    assert not marker.exists()
    assert "needs code of its own" in refused.stderr and "[y/N]" not in refused.stdout + refused.stderr
    assert run("--trust-remote-code").returncode == 0
    assert marker.exists()
