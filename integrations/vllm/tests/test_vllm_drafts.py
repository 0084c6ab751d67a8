"""A draft by its name in vLLM; and of the shipped head vLLM accepts exactly what the reference engine accepts."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import engine, metrics, tokens
from test_routes import in_vllm, route_of
from vllm_heads import eagle3
from vllm_models import random_llama

from specdec_vllm import cli

ROOT = Path(__file__).parents[3]
NAME = "smollm2-135m-eagle3"
K = 3
QUESTIONS = (
    "Why do many people like to live near the sea? Give three reasons.",
    "Write a Python function that returns the longest word of a sentence, with a docstring.",
    "Repeat this sentence twice: the quick brown fox jumps over the lazy dog and runs away.",
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("deep") / "llama", layers=4)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """An installed distribution with a draft of the name "acme-small"; the folder of its files."""
    site = tmp_path / "site"
    folder = site / "acme_small"
    shutil.copytree(eagle3(tmp_path / "head")["model"], folder)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    card = {"target": "acme/tiny", "method": "eagle3", "num_speculative_tokens": 2}
    (folder / "draft.json").write_text(json.dumps(card))
    info = site / "acme_small-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-small\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specdec.drafts.v1]\nacme-small = acme_small\n")
    monkeypatch.syspath_prepend(site)
    return folder


@pytest.mark.fast
def test_a_name_beside_the_method_specdec_is_vllms_own_method_over_the_drafts_folder(llama, shipped):
    configured = in_vllm(llama, {"method": "specdec", "model": "acme-small"}).speculative_config
    assert (configured.method, configured.model, configured.num_speculative_tokens) == ("eagle3", str(shipped), 2)
    inside = in_vllm(llama, {"method": "specdec", "specdec": {"model": "acme-small"}}).speculative_config
    assert (inside.method, inside.model) == ("eagle3", str(shipped))
    by_path = in_vllm(llama, {"method": "specdec", "model": str(shipped)}).speculative_config
    assert (by_path.method, by_path.num_speculative_tokens) == ("eagle3", 2)
    assert route_of(llama, {"model": "acme-small"}).keys["model"] == str(shipped)


@pytest.mark.fast
def test_over_the_bridge_the_name_is_resolved_where_the_drafter_is_made(llama, shipped):
    speculative = {"method": "specdec", "model": "acme-small", "specdec": {"route": "bridge"}}
    configured = in_vllm(llama, speculative).speculative_config
    assert configured.specdec == {"model": "acme-small", "route": "bridge", "method": "eagle3"}


@pytest.mark.fast
def test_a_name_given_twice_is_refused(llama, shipped):
    with pytest.raises(ValueError, match="model: given twice"):
        in_vllm(llama, {"method": "specdec", "model": "acme-small", "specdec": {"model": "other"}})


@pytest.mark.fast
def test_the_command_reads_a_name_as_vllm_does():
    assert cli.unwrapped({"method": "specdec", "model": NAME}) == {"model": NAME}
    assert cli.unwrapped({"method": "specdec", "model": "ngram"}) == {"method": "ngram"}


def smollm2():
    spec = importlib.util.spec_from_file_location("smollm2", ROOT / "demo" / "smollm2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.model_folder()


@pytest.mark.real_model
def test_of_the_shipped_head_vllm_accepts_what_the_reference_engine_accepts():
    from vllm import SamplingParams

    folder = smollm2()
    command = [sys.executable, str(Path(__file__).parent / "engine_counts.py"), str(folder), NAME, str(K), *QUESTIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = json.loads(done.stdout.splitlines()[-1])
    assert sum(each["accepted"][0] for each in expected) > 0
    with engine(folder, speculative_config={"method": "specdec", "model": NAME, "num_speculative_tokens": K}) as llm:
        assert llm.llm_engine.vllm_config.speculative_config.method == "eagle3"
        before = 0, [0] * K
        for each in expected:
            params = SamplingParams(temperature=0.0, max_tokens=len(each["ids"]), ignore_eos=True)
            assert tokens(llm, [each["prompt"]], params) == [[each["ids"]]]
            counted = metrics(llm)
            now = counted["spec_decode_num_drafts"], counted["spec_decode_num_accepted_tokens_per_pos"]
            gained = [after - earlier for earlier, after in zip(before[1], now[1], strict=True)]
            assert (now[0] - before[0], gained) == (each["steps"], each["accepted"])
            before = now
