"""Every key is honoured, or refused by name with what was given, what was expected and what to do."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from draft_model_folders import METHOD, draft, drafter, patch, saved
from draft_model_folders import keys as draft_keys
from draft_model_tokenizers import byte_level, metaspace, numbered

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, PluginError, SpecdecError, TargetError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine import LLM
from specdec_plugin_draft_model.tokenizer_files import texts_of
from specdec_testing.fakes import FakeTarget
from specdec_testing.targets import tiny_target

TARGET = FakeTarget(tiny_target("llama"))
PARD = {"pard_token": 100, "spd_type": "pard"}
MAPPED = {"use_heterogeneous_vocab": True}
TEXT = {**MAPPED, "heterogeneous_vocab_method": "text"}
DRAWN = {"draft_sample_method": "probabilistic"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return draft(tmp_path_factory.mktemp("d"))


def resolve_config(model: str | None, **keys: Any) -> ResolvedConfig:
    config = {"method": METHOD, "model": model, "num_speculative_tokens": 3, **keys}
    return resolve(config, TARGET.info, Registry(Catalog.discover()))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"parallel_drafting": True}, "parallel_drafting: .*names no mask token .pard_token.*PARD checkpoint"),
        ({"heterogeneous_vocab_method": "text"}, "heterogeneous_vocab_method: .*set use_heterogeneous_vocab"),
        ({**MAPPED, "heterogeneous_vocab_method": "words"}, "heterogeneous_vocab_method: .*'token' or 'text'"),
        ({**TEXT, **DRAWN}, "draft_sample_method: .*no distribution over the target's ids"),
        ({**TEXT, "parallel_drafting": True}, "parallel_drafting: texts are drafted token by token"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: 2 given, .*one device here .*vLLM"),
        ({"code_revision": "abc"}, "code_revision: no code .* unless trust_remote_code"),
        ({"draft_confidence_threshold": 1.5}, "draft_confidence_threshold: .*less than or equal to 1"),
        ({"quantization": ""}, "quantization: "),
        ({"max_model_len": 4096}, "max_model_len: 4096 given, and the target's is 256 and the drafter's is 256"),
        ({"use_heterogeneous_vocab": "yes"}, "use_heterogeneous_vocab: "),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: .*draft_tensor_parallel_size"),
        ({"heterogeneous_vocab": True}, "heterogeneous_vocab: unknown key .*did you mean use_heterogeneous_vocab"),
    ],
    ids=str,
)
def test_keys_that_cannot_be_honoured_are_refused_by_name(keys: dict[str, Any], said: str, model: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve_config(model, **keys)


def test_all_problems_are_said_at_once(model: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_config(model, parallel_drafting=True, draft_tensor_parallel_size=4, code_revision="abc")
    keys = {problem.key for problem in error.value.problems}
    assert keys == {"parallel_drafting", "draft_tensor_parallel_size", "code_revision"}


def test_a_drafter_is_needed_and_must_be_a_language_model_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model: draft_model needs a draft checkpoint, and none was given"):
        resolve_config(None)
    head = patch(draft(tmp_path / "head"), architectures=["Eagle3LlamaForCausalLM"])
    with pytest.raises(ConfigError, match=r"another kind of drafter \(architectures 'Eagle3.*name its own method"):
        resolve_config(head)
    bare = patch(draft(tmp_path / "bare"), vocab_size=None)
    with pytest.raises(ConfigError, match=r"not one of a language model: no vocabulary size \(vocab_size"):
        resolve_config(bare)


def test_what_the_checkpoint_and_the_keys_say_settles_traits(model: str, tmp_path: Path) -> None:
    plain = resolve_config(model).traits
    assert (plain.rows, plain.weights, plain.when_off, plain.draft_distribution) == (
        "none",
        "own",
        "catch_up",
        "deterministic",
    )
    assert (plain.max_position, plain.extra_slots, plain.lookahead_tokens(3)) == (256, 1, 3)
    assert resolve_config(model).verifier == "coupled"
    drawn = resolve_config(model, **DRAWN)
    assert (drawn.traits.draft_distribution, drawn.traits.shares_noise, drawn.verifier) == ("soft", False, "standard")
    shared = resolve_config(model, **DRAWN, rejection_sample_method="coupled")
    assert (shared.traits.shares_noise, shared.verifier) == (True, "coupled")
    pard = patch(draft(tmp_path / "p"), **PARD)
    assert resolve_config(pard).traits.extra_slots == 3
    assert resolve_config(pard, parallel_drafting=False).traits.extra_slots == 1
    assert resolve_config(pard, **TEXT).traits.max_position is None, "its positions are not the host's"
    assert resolve_config(model, max_model_len=40).max_model_len == 40
    assert resolve_config(model, draft_tensor_parallel_size=1, revision=None).draft_tensor_parallel_size == 1


def refused(model: str, said: str, kind: type[SpecdecError] = ConfigError, **keys: Any) -> None:
    """The drafter is not built, for that reason."""
    with pytest.raises((kind, PluginError), match=said):
        drafter(model, TARGET, **keys)


def test_a_mask_token_beyond_the_models_ids_is_refused(tmp_path: Path) -> None:
    refused(patch(draft(tmp_path / "p"), pard_token=128, spd_type="pard"), "pard_token 128 .* none of its 128 ids")


def test_a_model_that_a_flat_batch_would_compute_wrongly_is_refused(tmp_path: Path) -> None:
    refused(draft(tmp_path / "conv", "lfm2"), "layer 0 of model type 'lfm2' is of type 'conv'")
    refused(draft(tmp_path / "bloom", "bloom"), "attention interface", TargetError)


def test_a_table_of_positions_that_neighbours_would_change_is_allowed_below_its_switch(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    model = draft(tmp_path / "d", rope_parameters=rope)
    refused(model, "set max_model_len to at most 64")
    drafter(model, TARGET, max_model_len=64)


def test_positions_of_an_unknown_type_are_refused_before_weights_are_read(model: str, tmp_path: Path) -> None:
    strange = patch(draft(tmp_path / "d"), rope_parameters={"rope_type": "spiral", "rope_theta": 1e4})
    with pytest.raises(ConfigError, match=r"type 'spiral'.*known are default, linear"):
        resolve_config(strange)


def test_positions_of_three_axes_are_refused_where_the_models_class_has_none(tmp_path: Path) -> None:
    rope = {"rope_type": "mrope", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    strange = patch(draft(tmp_path / "d"), rope_parameters=rope)
    refused(strange, "type 'mrope', which this type of model does not have", TargetError)


def test_quantisation_by_name_needs_what_transformers_needs_and_that_is_known_before_anything_is_loaded(
    model: str,
) -> None:
    cases = {
        "magic": "quantization: 'magic' is not known to transformers; known are .*bitsandbytes",
        "torchao": "'torchao' cannot be used: TypeError.*quant_type.*install what it needs",
    }
    if importlib.util.find_spec("optimum") is None:
        cases["quanto"] = "'quanto' cannot be used: ImportError: .*optimum-quanto"
    for name, said in cases.items():
        with pytest.raises(ConfigError, match=said) as caught:
            resolve_config(model, quantization=name)
        assert [problem.key for problem in caught.value.problems] == ["quantization"]


def test_a_quantised_checkpoint_is_read_as_it_says(tmp_path: Path) -> None:
    """Weights in 8-bit floats with one scale for each block, which transformers turns into plain ones where asked."""
    plain = tiny_target("llama", seed=7, hidden_size=128, intermediate_size=128, num_attention_heads=4)
    expected = plain.state_dict()["model.layers.0.mlp.up_proj.weight"]
    folder = Path(saved(tmp_path / "q", plain))
    state = {}
    for name, tensor in plain.state_dict().items():
        if name.endswith("proj.weight"):
            scale = tensor.abs().max() / 448.0
            state[name] = (tensor / scale).to(torch.float8_e4m3fn)
            blocks = [-(-size // 128) for size in tensor.shape]
            state[f"{name}_scale_inv"] = scale.expand(*blocks).contiguous()
        else:
            state[name] = tensor
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors", {"format": "pt"})
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "dequantize": True}
    patch(folder, quantization_config=said)
    proposer, _ = drafter(str(folder), TARGET)
    weight = proposer._runner._flat.model.state_dict()["model.layers.0.mlp.up_proj.weight"]  # type: ignore[attr-defined]
    assert float((weight - expected).abs().max() / expected.abs().max()) < 0.05
    with pytest.raises(ConfigError, match="quantization: 'awq' given, and the checkpoint is quantised by 'fp8'"):
        resolve_config(str(folder), quantization="awq")
    resolve_config(str(folder), quantization="fp8")


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own_llama"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_a_checkpoints_own_code_runs_only_if_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = Path(draft(tmp_path / "d"))
    (folder / "own.py").write_text(CODE)
    auto = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    patch(folder, model_type="own_llama", architectures=["OwnForCausalLM"], auto_map=auto)
    refused(str(folder), "own_llama.*trust_remote_code")
    proposer, _ = drafter(str(folder), TARGET, trust_remote_code=True, code_revision="main")
    assert type(proposer._runner._flat.model).__name__ == "OwnForCausalLM"  # type: ignore[attr-defined]


def test_revisions_of_weights_and_code_reach_transformers(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    from specdec_plugin_draft_model import building

    seen: list[Any] = []

    def look(source: Any) -> Any:
        seen.append(source)
        message = "seen"
        raise TargetError(message)

    monkeypatch.setattr(building, "load_config", look)
    monkeypatch.setattr("specdec_core.config.checkpoint.locate", lambda name, patterns=None, revision=None: Path(model))
    with pytest.raises((TargetError, PluginError), match="seen"):
        drafter("org/name", TARGET, revision="v2", code_revision="v3", trust_remote_code=True)
    assert seen[0].arguments == {"revision": "v2", "trust_remote_code": True, "code_revision": "v3"}


def test_options_are_those_of_the_page() -> None:
    from specdec_plugin_draft_model.options import DraftModelOptions

    root = next(parent for parent in Path(__file__).parents if (parent / "docs").is_dir())
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", (root / "docs/draft_model.md").read_text(), re.MULTILINE)
    defaults = {name: json.loads(value) for name, value in rows}
    assert defaults == {name: field.default for name, field in DraftModelOptions.model_fields.items()}


# What files tell already is refused before anything loads


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    """A target with a tokenizer beside it."""
    folder = tmp_path / "target"
    saved(folder, TARGET.model, numbered([f"w{i}" for i in range(128)]))
    return folder


def checked(target: Path | TargetInfo, model: str, **keys: Any) -> ResolvedConfig:
    info = target if isinstance(target, TargetInfo) else TargetInfo.from_folder(str(target))
    return resolve({**draft_keys(model), **keys}, info, Registry(Catalog.discover()))


def test_ids_with_other_texts_are_refused_by_their_files(target_folder: Path, tmp_path: Path) -> None:
    names = [f"w{i}" for i in range(128)]
    names[5], names[9] = names[9], names[5]
    other = draft(tmp_path / "d", tokenizer=numbered(names))
    with pytest.raises(ConfigError, match=r"id 5 is 'w5' in the target and 'w9' in the drafter, the first of 2 ids"):
        checked(target_folder, other)
    checked(target_folder, other, **MAPPED)
    checked(target_folder, draft(tmp_path / "same", tokenizer=numbered([f"w{i}" for i in range(128)])))
    checked(target_folder, draft(tmp_path / "none"))


def test_files_of_pieces_and_of_added_tokens_are_read_as_the_tokenizer_reads_them(tmp_path: Path) -> None:
    for number, tokenizer in enumerate((byte_level(), metaspace(), numbered(["a", "b"], eos="</s>"))):
        tokenizer.add_tokens(["<new>"])
        tokenizer.save_pretrained(tmp_path / str(number))
        found = texts_of(str(tmp_path / str(number)), None, 10**6)
        assert found == {i: text for text, i in tokenizer.get_vocab().items()}


def test_a_host_with_another_tokenizer_than_the_one_beside_the_weights_is_not_judged_by_that(
    target_folder: Path, tmp_path: Path
) -> None:
    other = draft(tmp_path / "d", tokenizer=numbered([f"v{i}" for i in range(128)]))
    own = tmp_path / "tokenizer"
    numbered([f"v{i}" for i in range(128)]).save_pretrained(own)
    with LLM(str(target_folder), draft_keys(other), tokenizer=str(own)) as llm:
        assert llm.get_tokenizer() is not None
    with pytest.raises(ConfigError, match="different tokenizers"):
        LLM(str(target_folder), draft_keys(other))


OLD_ROPE = {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer 1 of .* is of type 'linear_attention'"),
        ({"is_encoder_decoder": True}, "is an encoder-decoder"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}},
            "set max_model_len to at most 64",
        ),
        (
            {
                "rope_parameters": None,
                "rope_scaling": {"type": "dynamic", "factor": 2.0},
                "max_position_embeddings": 64,
            },
            "",
        ),
        (PARD | {"pard_token": 128}, "pard_token 128 of .* is none of its 128 ids"),
    ],
    ids=str,
)
def test_a_model_that_could_not_run_here_is_refused_by_its_config(
    settings: dict[str, Any], said: str, target_folder: Path, tmp_path: Path
) -> None:
    model = patch(draft(tmp_path / "d"), **settings)
    if not said:
        checked(target_folder, model)
        return
    with pytest.raises(ConfigError, match=said):
        checked(target_folder, model)


def test_a_host_with_draft_models_of_its_own_may_run_what_this_drafter_cannot(
    target_folder: Path, tmp_path: Path
) -> None:
    model = patch(draft(tmp_path / "d"), layer_types=["full_attention", "linear_attention"])
    info = TargetInfo.from_folder(str(target_folder))
    resolved = resolve(draft_keys(model), info, Registry(Catalog.discover()), host_has_methods=True)
    assert "linear_attention" in resolved.drafter_problems[0].message
