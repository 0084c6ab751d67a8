"""A method of a third party, installed as its own distribution, works in the reference engine as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from words import model_folder

from specdec_core.registry.catalog import Catalog
from specdec_engine import LLM, SamplingParams

# The same folder that the tests of the vLLM integration install: neither host asks for a line to be changed.
THIRD_PARTY = Path(__file__).parents[1] / "integrations" / "vllm" / "tests" / "third_party" / "acme-echo"
CONFIG = {"method": "acme_echo", "num_speculative_tokens": 4, "reach": 64}
PROMPTS = ["the cat sat on the mat and the cat", "a hat and a", "the mat the mat the"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(site), str(THIRD_PARTY)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "acme_echo":
            del sys.modules[name]


def test_it_imports_nothing_of_this_house_but_the_core():
    code = "\n".join(file.read_text(encoding="utf-8") for file in sorted(THIRD_PARTY.rglob("*.py")))
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", code, re.MULTILINE))
    assert imported == {"acme_echo", "numpy", "pydantic", "specdec_core"}


def test_it_drafts_in_the_reference_engine_and_the_text_is_the_plain_one(installed, tmp_path):
    record = Catalog.discover().find("proposer", "acme_echo")
    assert (record.distribution, record.version) == ("acme-echo", "1.2.3")
    model = str(model_folder(tmp_path / "model"))
    greedy = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    drawn = SamplingParams(temperature=0.8, seed=3, max_tokens=32, ignore_eos=True)
    near = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, extra_args={"specdec": {"reach": 2}})
    with LLM(model, decode_width=8) as plain:
        with LLM(
            hf_model=plain.model, tokenizer=plain.tokenizer, decode_width=8, speculative_config=CONFIG, strict=True
        ) as llm:
            for params in (greedy, drawn):
                expected = [output.outputs[0].token_ids for output in plain.generate(PROMPTS, params)]
                outputs = llm.generate(PROMPTS, params)
                assert [output.outputs[0].token_ids for output in outputs] == expected
            accepted = sum(output.metrics.accepted for output in llm.generate(PROMPTS, greedy))
            drafted = [sum(o.metrics.drafted for o in llm.generate(PROMPTS, params)) for params in (near, greedy)]
    assert accepted > 0
    assert drafted[0] < drafted[1]
