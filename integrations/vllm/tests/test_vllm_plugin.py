"""What is changed in vLLM and what is not: the switch, once and no more, and one line where vLLM is another one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest
from conftest import engine, tokens

from specdec_vllm import patching, plugin

PLACES = [
    ("vllm.engine.arg_utils", "SpeculativeConfig"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.__init__"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._input_fits_in_drafter"),
    ("vllm.v1.worker.gpu_model_runner", "SuffixDecodingProposer"),
    ("vllm.config.speculative", "has_arctic_inference"),
    ("vllm.utils.cpu_triton_utils", "_expand_kernel_impl"),
    ("vllm.v1.sample.rejection_sampler", "apply_sampling_constraints"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.propose_draft_token_ids"),
]
STATE = f"""
import json, sys
from specdec_vllm import patching, plugin
from vllm.plugins import load_general_plugins
load_general_plugins()
places = {PLACES!r}
first = [patching.find(*place) for place in places]
plugin.register()
again = [patching.find(*place) for place in places]
ours = [patching.is_ours(thing) for thing in first]
print(json.dumps([ours, [a is b for a, b in zip(first, again)], "numba" in sys.modules]))
"""


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_everything_is_changed_once_and_the_switch_leaves_all_of_it_alone():
    """And numba stays away: vLLM's CPU worker looks through all modules at its start, and fails at one of llvmlite."""
    everything = [True] * len(PLACES)
    assert run(STATE, SPECDEC_VLLM="1") == [everything, everything, False]
    assert run(STATE, SPECDEC_VLLM="0") == [[False] * len(PLACES), everything, False]


def test_our_package_alone_loads_neither_vllm_nor_torch():
    code = """
import json, sys
import specdec_vllm
light = sorted({"vllm", "torch", "numba", "pydantic"} & set(sys.modules))
import specdec_vllm.plugin
print(json.dumps([light, sorted({"vllm", "torch", "numba"} & set(sys.modules))]))
"""
    assert run(code) == [[], []]


@pytest.mark.parametrize("missing", [(0, 2), (1, 3)])
def test_a_vllm_that_lacks_a_part_is_left_as_it_is_there_and_one_line_says_so(missing):
    code = f"""
import importlib, json, logging, sys
from specdec_vllm import patching, plugin
for module, path in {[PLACES[i] for i in missing]!r}:
    module = importlib.import_module(module)
    owner, _, name = path.rpartition(".")
    owner = getattr(module, owner) if owner else module
    if name == "__init__":
        setattr(owner, name, lambda self, configuration: None)
    else:
        delattr(owner, name)
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
logging.getLogger("vllm.specdec").addHandler(handler)
plugin.register()
changed = []
for place in {PLACES!r}:
    try:
        changed.append(patching.is_ours(patching.find(*place)))
    except patching.Mismatch:
        changed.append(False)
print(json.dumps([records, changed]))
"""
    records, changed = run(code)
    assert len(records) == len(missing)
    for (level, message), place in zip(records, missing, strict=True):
        assert level == "WARNING" and "leaves" in message and PLACES[place][1].rpartition(".")[2] in message
    # Suffix needs two places: if one does not fit, neither is changed.
    left = {*missing, 4} if 3 in missing else {*missing}
    assert [i for i, now in enumerate(changed) if not now] == sorted(left)


def test_an_error_inside_a_step_costs_that_step_and_one_line(monkeypatch, logged):
    from specdec_vllm import runner

    monkeypatch.setattr(runner, "introduce", lambda: 1 / 0)
    plugin.register()
    (record,) = [record for record in logged if record.levelno >= logging.WARNING]
    assert "introduce" in record.getMessage() and "ZeroDivisionError" in record.getMessage()


def test_a_part_with_other_parameters_is_a_mismatch_and_nothing_is_replaced(monkeypatch):
    import textwrap as module

    original = module.dedent
    with pytest.raises(patching.Mismatch, match=r"takes \(text\), expected \(words"):
        patching.wrap("textwrap", "dedent", ("words",), lambda old: lambda words: old(words))
    assert module.dedent is original
    with pytest.raises(patching.Mismatch, match="has no nothing"):
        patching.find("textwrap", "nothing.here")
    with pytest.raises(patching.Mismatch):
        patching.find("textwrap_that_is_not_there", "dedent")


def test_a_configuration_survives_the_way_to_a_process_that_has_run_no_plugin(llama, tmp_path):
    import pickle

    from vllm import EngineArgs

    speculative = {
        "method": "specdec",
        "model": "ngram",
        "num_speculative_tokens": 3,
        "specdec": {"prompt_lookup_max": 2},
    }
    plugin.register()
    config = EngineArgs(str(llama), dtype="float32", speculative_config=speculative).create_engine_config()
    file = tmp_path / "config"
    file.write_bytes(pickle.dumps(config.speculative_config))
    code = f"""
import json, pickle
config = pickle.loads(open({str(file)!r}, "rb").read())
print(json.dumps([config.method, config.model, config.num_speculative_tokens, config.specdec]))
"""
    found = run(code, SPECDEC_VLLM="0")
    assert found == ["custom_class", "specdec_vllm.Proposer", 3, {"method": "ngram", "prompt_lookup_max": 2}]


def test_the_command_line_offers_the_method_and_vllms_own_methods_stay(llama):
    from vllm import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    plugin.register()
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    words = ["--model", str(llama), "--spec-method", "specdec", "--spec-model", "ngram", "--spec-tokens", "3"]
    config = EngineArgs.from_cli_args(parser.parse_args(words)).create_engine_config().speculative_config
    assert (config.specdec, config.num_speculative_tokens) == ({"method": "ngram"}, 3)
    own = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    config = EngineArgs(str(llama), speculative_config=own).create_engine_config().speculative_config
    assert (config.method, config.prompt_lookup_min, config.specdec) == ("ngram", 4, None)
    for wrong, words in (({**own, "method": "ngrm"}, "ngrm"), ({**own, "specdec": {}}, "holds options for")):
        with pytest.raises(ValueError, match=words):
            EngineArgs(str(llama), speculative_config=wrong).create_engine_config()


@pytest.mark.real_model
def test_a_real_model_says_the_same_with_lookup_and_takes_fewer_steps():
    import importlib.util
    from pathlib import Path

    from conftest import metrics

    spec = importlib.util.spec_from_file_location("smollm2", Path(__file__).parents[3] / "demo" / "smollm2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = module.model_folder()
    from transformers import AutoTokenizer

    text = "Repeat this sentence three times: the quick brown fox jumps over the lazy dog and runs away."
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
    ids = list(prompt["input_ids"] if hasattr(prompt, "keys") else prompt)
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=48)
    lookup = {"method": "specdec", "model": "ngram", "num_speculative_tokens": 8}
    lookup["specdec"] = {"prompt_lookup_min": 2, "prompt_lookup_max": 3}
    answers = []
    for arguments in ({}, {"speculative_config": lookup}):
        with engine(folder, **arguments) as llm:
            answers.append(tokens(llm, [ids], params))
            counted = metrics(llm)
    assert answers[0] == answers[1]
    assert counted["spec_decode_num_accepted_tokens"] > 10
