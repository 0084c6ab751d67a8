"""Which way a configuration takes into vLLM, that vLLM agrees with it, and what is said where there is no way."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from typing import Any

import pytest
from conftest import COMMON, engine, metrics, tokens
from test_vllm_tokens import CROWDED, params, prompts
from vllm_heads import eagle, eagle3, from_plugin, medusa
from vllm_models import random_llama

from specdec_core.errors import CheckStageError, ConfigError
from specdec_core.sources import Problem, TargetInfo
from specdec_vllm import cli, plugin
from specdec_vllm.routes import FROM_IDS, FROM_STATES, choose
from specdec_vllm.settings import configure

pytestmark = pytest.mark.fast

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("deep") / "llama", layers=4)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    return {make.__name__: make(folder / make.__name__) for make in (eagle, eagle3, medusa)}


def route_of(llama, config, max_model_len=None):
    target = TargetInfo.from_folder(llama, max_model_len)
    return choose(configure(config, target), target)


def wrapped(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A configuration for vLLM with our plugin."""
    inner = {**config, **options}
    return {"method": "specdec", "model": inner.pop("method"), "specdec": inner}


def in_vllm(llama, speculative, **arguments):
    """The speculative configuration as vLLM settles it."""
    from vllm import EngineArgs

    plugin.register()
    common = {key: COMMON[key] for key in ("dtype", "max_model_len", "max_num_seqs", "enforce_eager")}
    return EngineArgs(str(llama), speculative_config=speculative, **common, **arguments).create_engine_config()


def test_vllm_takes_its_own_methods_with_the_keys_that_were_made_for_it(llama, heads):
    for name, architecture in (("eagle", "EagleLlamaForCausalLM"), ("eagle3", "Eagle3LlamaForCausalLM")):
        configured = in_vllm(llama, wrapped(heads[name], draft_sample_method="probabilistic")).speculative_config
        assert (configured.method, configured.num_speculative_tokens) == (name, 4)
        assert configured.draft_model_config.architectures == [architecture]
        assert (configured.draft_sample_method, configured.specdec) == ("probabilistic", None)


def test_what_vllm_does_not_run_goes_to_drafters_of_ours(llama, heads):
    wanted = {"medusa": (heads["medusa"], FROM_STATES), "ngram": (NGRAM, FROM_IDS)}
    for name, (config, path) in wanted.items():
        configured = in_vllm(llama, wrapped(config)).speculative_config
        assert (configured.method, configured.model) == ("custom_class", path), name
        assert configured.specdec["method"] == name


def test_text_by_vllms_own_method_is_that_of_plain_decoding(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(from_plugin("eagle", "checkpoints"), "HEAD_DIM", 32)  # vLLM's CPU kernels know no 8
    with engine(llama) as llm:
        expected = tokens(llm, prompts(), params())
    with engine(llama, speculative_config=wrapped(eagle3(tmp_path / "head")), **CROWDED) as llm:
        assert llm.llm_engine.vllm_config.speculative_config.method == "eagle3"
        assert tokens(llm, prompts(), params()) == expected
        assert metrics(llm)["spec_decode_num_draft_tokens"] > 1000


def test_a_target_that_is_compiled_with_other_states_is_another_one_for_vllms_cache(llama, heads):
    plain = in_vllm(llama, wrapped(heads["eagle3"], route="bridge")).speculative_config
    other = wrapped(heads["eagle3"], route="bridge", eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    assert plain.compute_hash() != in_vllm(llama, other).speculative_config.compute_hash()


def bias(folder, config):
    made = from_plugin("eagle", "checkpoints")
    model = made.save(folder, made.eagle_1(64, bias=True), made.config(64, vocab_size=96))
    return {**config, "model": model}


def specforge(folder, config):
    """Layers inside eagle_config count what a state leaves, for us; for vLLM they do not."""
    made = from_plugin("eagle", "checkpoints")
    settings = made.config(64, vocab_size=96, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 3]})
    model = made.save(folder, made.eagle_3(64, vocab=96, draft_vocab=96), settings)
    return {**config, "method": "eagle3", "model": model}


REASONS = {
    "a bias that vLLM leaves out": (bias, "fc.bias"),
    "another numbering of layers": (specforge, r"vLLM reads the layers \[0, 1, 3\] .* wants \[1, 2, 4\]"),
    "a key of ours": (lambda folder, config: {**config, "disable_by_batch_size": 4}, "vLLM has no such key"),
    "a cache of ours": (lambda folder, config: {**config, "drafter_kv_tokens": 512}, "vLLM's own cache"),
    "an option of ours": (lambda folder, config: {**config, "share_embeddings": True}, "share_embeddings: vLLM takes"),
    "a file": (lambda folder, config: {**config, "model": f"{config['model']}/model.safetensors"}, "this is a file"),
    "the user's wish": (lambda folder, config: {**config, "route": "bridge"}, "route is 'bridge'"),
}


@pytest.mark.parametrize("why", REASONS)
def test_the_route_says_why_vllms_own_method_was_not_taken(why, llama, heads, tmp_path):
    change, said = REASONS[why]
    config = change(tmp_path / "head", heads["eagle"])
    found = route_of(llama, config)
    assert (found.name, found.keys["model"]) == ("bridge", FROM_STATES)
    assert found.reason.startswith("it reads the target's states; ")
    assert re.search(said, found.reason), found.reason
    if why != "the user's wish":
        with pytest.raises(ConfigError, match=said):
            route_of(llama, {**config, "route": "native"})


def test_what_vllm_itself_refuses_goes_over_the_bridge_and_the_log_says_what_it_said(llama, heads, tmp_path, logged):
    made = from_plugin("eagle", "checkpoints")
    config = made.config(64, vocab_size=96, bias=False, architectures=["WhateverForCausalLM"], model_type="whatever")
    model = made.save(tmp_path / "head", made.eagle_1(64), config)
    logging.getLogger("vllm.specdec").setLevel(logging.INFO)
    configured = in_vllm(llama, wrapped({**heads["eagle"], "model": model})).speculative_config
    assert (configured.method, configured.model) == ("custom_class", FROM_STATES)
    (said,) = [record.getMessage() for record in logged if "takes the route" in record.getMessage()]
    assert said.startswith("eagle takes the route 'bridge'") and "vLLM refuses it" in said and "whatever" in said
    with pytest.raises(ValueError, match="vLLM refuses it"):
        in_vllm(llama, wrapped({**heads["eagle"], "model": model}, route="native"))


def test_where_a_draft_ends_early_the_reason_says_what_vllm_does_there(llama, heads):
    assert "near position 16" in route_of(llama, heads["eagle"]).reason
    assert "near position" not in route_of(llama, heads["eagle"], 16).reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"route": "fast"}, "route is 'fast': give one of auto, native, bridge"),
        ({"drafter_kv_tokens": 0}, "drafter_kv_tokens is 0: give a whole number"),
        ({"drafter_kv_tokens": "many"}, "drafter_kv_tokens is 'many'"),
    ],
)
def test_wishes_that_cannot_be_meant_are_refused_by_name(options, said, llama, heads):
    with pytest.raises(ConfigError, match=said):
        route_of(llama, {**heads["eagle"], **options})


def test_a_third_partys_method_names_its_own_translation_and_wrong_answers_name_it(llama, tmp_path):
    import vllm_methods

    folder = vllm_methods.register(tmp_path)
    sys.path.append(str(folder))
    answers = {
        "keys": ({"method": "ngram", "prompt_lookup_max": 4}, None),
        "problem": (Problem(key="how", message="not on Sundays"), "how: not on Sundays"),
        "nothing": (None, "acme-tests names no method"),
    }
    try:
        for answer, said in answers.values():
            vllm_methods.Plugin.answer = answer
            found = route_of(llama, {"method": "table_drafts", "num_speculative_tokens": 3})
            if said is None:
                assert found.name == "native"
                assert found.keys == {**answer, "num_speculative_tokens": 3}
            else:
                assert found.name == "ids" and said in found.reason
        vllm_methods.Plugin.answer = ["ngram"]
        with pytest.raises(CheckStageError, match="acme-tests"):
            route_of(llama, {"method": "table_drafts", "num_speculative_tokens": 3})
    finally:
        vllm_methods.Plugin.answer = None
        sys.path.remove(str(folder))


def test_states_of_a_target_that_is_spread_over_devices_are_refused_and_ids_are_not(llama, heads):
    """As far as the configuration: there is one device here."""
    from vllm.config import ParallelConfig

    from specdec_vllm.bridge.refusals import of_parallel

    target = TargetInfo.from_folder(llama)
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        spread = ParallelConfig.__new__(ParallelConfig)
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            object.__setattr__(spread, name, 2 if name == key else 1)
        (said,) = of_parallel(configure(heads["medusa"], target).resolved.traits, spread)
        assert said.startswith(f"{key} is 2") and "set it to 1" in said
        assert not list(of_parallel(configure(NGRAM, target).resolved.traits, spread))


def test_the_command_prints_the_route_and_reads_what_vllm_reads(llama, heads, capsys):
    for config in (heads["eagle"], wrapped(heads["eagle"])):
        assert cli.command([str(llama), "-sc", json.dumps(config), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["method"], said["route"], said["keys"]["method"]) == ("eagle", "native", "eagle")
    assert cli.command([str(llama), "-sc", json.dumps(NGRAM)]) == 0
    assert "it drafts from ids" in capsys.readouterr().out


def test_what_the_command_prints_can_be_given_to_vllm_as_it_stands(llama, heads, capsys):
    from vllm import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    plugin.register()
    for config in (NGRAM, {**heads["eagle"], "route": "bridge"}, heads["eagle"]):
        assert cli.command([str(llama), "-sc", json.dumps(config)]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("for vLLM")]
        words = shlex.split(line.removeprefix("for vLLM"))
        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        args = EngineArgs.from_cli_args(parser.parse_args(["--model", str(llama), *words]))
        found = args.create_engine_config().speculative_config
        assert found.num_speculative_tokens == config["num_speculative_tokens"]
        if found.specdec is not None:
            given = {key: value for key, value in config.items() if key != "num_speculative_tokens"}
            assert found.specdec == given
        else:
            assert (found.method, config["method"]) == ("eagle", "eagle")


def test_a_method_that_reads_the_targets_keys_is_vllms_own_and_refused_on_the_bridge(tmp_path):
    made = from_plugin("mtp", "assistant_models")
    target, model = str(tmp_path / "target"), made.layout(made.assistant()).save(tmp_path / "assistant")
    made.target().save_pretrained(target)
    config = {"model": model, "num_speculative_tokens": 2}
    assert route_of(target, config).name == "native"
    with pytest.raises(ConfigError, match="mtp attends to the target's keys and values here, and vLLM keeps those"):
        route_of(target, {**config, "route": "bridge"})
