"""Where a model comes from: a .gguf file, a hub id with or without a connection, a revision; one clear error each."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_file import write_gguf
from runs import ids_of
from words import model_folder, tiny_tokenizer

from specdec_core.errors import TargetError
from specdec_engine import LLM, SamplingParams
from specdec_nn.hf.loading import ModelSource
from specdec_testing.targets import tiny_target

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
TEXTS = ["the cat sat on the mat and the cat sat", "a hat"]
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("quantised", [False, True], ids=["float32", "Q8_0"])
def test_a_gguf_file_gives_the_ids_and_texts_of_the_model_inside(
    model: Any, tokenizer: Any, tmp_path: Path, quantised: bool
) -> None:
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer, quantised=quantised)
    expected = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    if quantised:
        for name, weight in expected.named_parameters():
            if "layers" in name and weight.dim() == 2:
                weight.data = rounded(weight.data)
    with LLM(hf_model=expected, tokenizer=tokenizer) as llm:
        plain = llm.generate(TEXTS, PARAMS)
    with LLM(tmp_path / "tiny.gguf", speculative_config=NGRAM) as llm:
        found = llm.generate(TEXTS, PARAMS)
        assert llm.get_metrics().drafted > 0
        assert {type(m).__name__ for m in llm.model.modules() if "Linear" in type(m).__name__} == {"Linear"}
    assert ids_of(found) == ids_of(plain)
    assert [r.outputs[0].text for r in found] == [r.outputs[0].text for r in plain]


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """A matrix after the way through blocks of 32 bytes; along rows, so that the order of rows does not matter."""
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.quantize(np.ascontiguousarray(weight.numpy()), kind)
    return torch.from_numpy(gguf.quants.dequantize(blocks, kind).copy())


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_gguf_file_can_be_read_in_half_the_memory(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer)
    with LLM(tmp_path / "tiny.gguf", dtype="bfloat16") as llm:
        assert {p.dtype for p in llm.model.parameters()} == {torch.bfloat16}


def test_a_gguf_file_that_cannot_be_read_is_one_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TargetError, match=r"'\./no\.gguf' is not a file here"):
        LLM("./no.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and then nothing")
    with pytest.raises(TargetError, match=r"broken\.gguf' cannot be loaded"):
        LLM(tmp_path / "broken.gguf")
    with pytest.raises(TargetError, match=r"no config\.json; pass one of its files: broken\.gguf"):
        LLM(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else found(name, *a))
    with pytest.raises(TargetError, match=r"pip install 'specdec-nn\[gguf\]'"):
        LLM(tmp_path / "broken.gguf")


def test_names_are_told_apart_without_looking_further_than_this_machine(tmp_path: Path) -> None:
    assert ModelSource.of("org/name") == ModelSource("org/name", "org/name")
    assert ModelSource.of("org/name", "v2").arguments == {"revision": "v2", "trust_remote_code": False}
    file = ModelSource.of("org/name/sub/file.gguf", "v2")
    given = {"gguf_file": "sub/file.gguf", "revision": "v2", "trust_remote_code": False}
    assert (file.place, file.arguments) == ("org/name", given)
    with pytest.raises(TargetError, match="revision='v2' is of a hub id"):
        ModelSource.of(str(tmp_path), "v2")
    with pytest.raises(TargetError, match="revision='v2' is of a hub id"):
        LLM(hf_model=tiny_target("llama"), revision="v2")


def put_into_cache(cache: Path, repo: str, revisions: dict[str, Path]) -> None:
    """Lay folders out as the hub's client does once it has fetched them: a commit for each branch."""
    place = cache / f"models--{repo.replace('/', '--')}"
    for number, (branch, folder) in enumerate(revisions.items()):
        commit = f"{number:040x}"
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "refs" / branch).write_text(commit)
        (place / "snapshots").mkdir(exist_ok=True)
        (place / "snapshots" / commit).symlink_to(folder, target_is_directory=True)


# Runs in a process of its own, since the client reads its environment when it is imported.
OFFLINE = """
import json, sys
from specdec_core.sources import DraftSource
from specdec_engine import LLM, SamplingParams

params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
said = {"drafter": sorted(DraftSource("org/drafter").tensor_shapes)[:1]}
for revision in (None, "other"):
    with LLM("org/name", revision=revision) as llm:
        said[str(revision)] = llm.generate("the cat", params)[0].outputs[0].token_ids
for name, revision in (("org/name", "third"), ("org/nobody", None)):
    try:
        LLM(name, revision=revision)
    except Exception as error:
        said[f"{name} {revision}"] = [type(error).__name__, str(error)]
json.dump(said, sys.stdout)
"""


@pytest.mark.slow
def test_hub_ids_are_found_in_the_cache_without_a_connection_and_others_are_one_clear_error(tmp_path: Path) -> None:
    first = model_folder(tmp_path / "first")
    other = model_folder(tmp_path / "other")
    changed = tiny_target("llama", vocab_size=json.loads((other / "config.json").read_text())["vocab_size"], seed=7)
    changed.save_pretrained(other)
    put_into_cache(tmp_path / "hub", "org/name", {"main": first, "other": other})
    put_into_cache(tmp_path / "hub", "org/drafter", {"main": first})
    ours = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "SPECDEC_KERNELS": "reference"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", OFFLINE],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    expected = {}
    for name, folder in (("None", first), ("other", other)):
        with LLM(folder) as llm:
            expected[name] = llm.generate("the cat", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    assert said["None"] != said["other"]
    assert {name: said[name] for name in expected} == {n: r[0].outputs[0].token_ids for n, r in expected.items()}
    assert said["drafter"] == ["lm_head.weight"]
    for name, shown in (("org/name third", "'org/name' at revision 'third'"), ("org/nobody None", "'org/nobody'")):
        kind, message = said[name]
        assert kind == "TargetError" and shown in message and "offline, only what was fetched before" in message
        assert "\n" not in message


# Prints what each name of a .gguf file on a hub drafts with, or how it is refused; without a connection.
GGUF_OFFLINE = """
import json, sys
from specdec_core.config.resolve import resolve
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine import LLM, SamplingParams

said = {}
for name in sys.argv[2:]:
    keys = {"method": "draft_model", "model": name, "num_speculative_tokens": 3}
    try:
        resolve(keys, TargetInfo.from_folder(sys.argv[1]), Registry(Catalog.discover()))
        with LLM(sys.argv[1], keys, strict=True) as llm:
            output = llm.generate("the cat", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))[0]
            said[name] = [output.outputs[0].token_ids, output.metrics.mean_acceptance_length]
    except Exception as error:
        said[name] = str(error)
json.dump(said, sys.stdout)
"""


@pytest.mark.slow
def test_a_gguf_file_on_a_hub_drafts_by_either_spelling_and_a_kind_of_them_is_refused_by_name(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    target, packed = tmp_path / "target", tmp_path / "packed"
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (packed / "sub").mkdir(parents=True)
    write_gguf(packed / "tiny.gguf", model, tokenizer)
    (packed / "sub" / "tiny.gguf").write_bytes((packed / "tiny.gguf").read_bytes())
    put_into_cache(tmp_path / "hub", "org/name-GGUF", {"main": packed})
    files = [f"org/name-GGUF{end}" for end in ("/tiny.gguf", ":tiny.gguf", "/sub/tiny.gguf")]
    kind, missing = "org/name-GGUF:Q4_K_M", "org/name-GGUF/other.gguf"
    ours = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "SPECDEC_KERNELS": "reference"}
    done = subprocess.run(
        [sys.executable, "-c", GGUF_OFFLINE, str(target), *files, kind, missing],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    with LLM(target) as llm:
        plain = llm.generate("the cat", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))[0]
    for name in files:
        ids, accepted = said[name]
        assert ids == plain.outputs[0].token_ids
        assert accepted > 2, "the drafter is the target itself"
    assert f"{kind!r} names a kind of quantisation (Q4_K_M); name the file: org/name-GGUF/<file>.gguf" in said[kind]
    assert f"{missing!r} is no local folder and could not be downloaded from the Hub" in said[missing]
