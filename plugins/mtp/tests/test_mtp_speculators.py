"""Files of speculators' type mtp: found, read as one recursive layer, and refused where they are not whole."""

from __future__ import annotations

import json
import logging
from functools import cache, partial
from pathlib import Path
from typing import Any

import mtp_models
import mtp_oracle
import pytest
import torch
import transformers
from mtp_models import GROUPED, HIDDEN, LAYERS, ROPE, VOCAB
from mtp_replay import LIVES, Compared
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec_core.cli.main import main
from specdec_core.config.detect import detect, swap_target
from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.context import MethodContext
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource, Problem, TargetInfo
from specdec_plugin_mtp.plugin import mtp
from specdec_testing.building import build
from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeTarget
from specdec_testing.subject import Subject

DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
LAYERS_OF = {"qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}


@cache
def target(layer: str) -> Any:
    """Return a model with layers of a type."""
    keys = {**GROUPED, "rope_parameters": ROPE, **({"head_dim": 8} if layer == "qwen3" else {})}
    config = getattr(transformers, LAYERS_OF[layer])(**keys)
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(mtp_models.drawn(name, tuple(parameter.shape)))
    return made.eval()


def tensors_of(layer: str) -> dict[str, Tensor]:
    """Return the tensors of the one layer, and the head that only training has a use for, which is NaN."""
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm", "post_attention_layernorm")
    inside = {
        **mtp_models.norms(*names),
        **mtp_models.linear("input_proj", HIDDEN, 2 * HIDDEN),
        **mtp_models.grouped_attention("self_attn", 8, bias=layer == "qwen2", qk_norm=layer == "qwen3"),
        **mtp_models.mlp("mlp", 48),
    }
    found = {f"mtp_layers.0.{name}": mtp_models.drawn(name, shape) for name, shape in inside.items()}
    return {**found, "verifier_lm_head.weight": torch.full((VOCAB, HIDDEN), torch.nan)}


def settings_of(layer: str, verifier: str = "some/target", **changes: Any) -> dict[str, Any]:
    """Return a config.json."""
    base = target(layer).config.to_diff_dict()
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    section = {"algorithm": "mtp", "proposal_methods": [proposal], "verifier": {"name_or_path": verifier}}
    said = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": {**base, "model_type": layer},
        "speculators_config": section,
    }
    return {**said, **changes}


def save(folder: Path, layer: str = "qwen2", tensors: dict[str, Tensor] | None = None, **changes: Any) -> str:
    """Write a file and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings_of(layer, **changes)))
    save_file(tensors_of(layer) if tensors is None else tensors, folder / "model.safetensors")
    return str(folder)


def info_of(layer: str, folder: Path) -> TargetInfo:
    """Save the target's config.json beside the file and return what is known of it."""
    target(layer).config.save_pretrained(folder / "target")
    return TargetInfo.from_folder(str(folder / "target"))


def resolve_config(folder: Path, layer: str = "qwen2", **keys: Any) -> ResolvedConfig:
    return resolve({"method": "mtp", **keys}, info_of(layer, folder), Registry(Catalog.discover(), strict=True))


def compared(folder: Path, layer: str, temperature: float = 0.0, k: int = 4, **keys: Any) -> Compared:
    """Lead a proposer of a file through the lives, comparing each draft with the oracle's."""
    handle = FakeTarget(target(layer))
    handle.info = info_of(layer, folder)
    file = save(folder / "draft", layer)
    method = build(Subject("mtp", {"model": file, **keys}, None), handle.info, k)
    tables = {
        "embedding": target(layer).get_input_embeddings().weight.detach(),
        "head": target(layer).lm_head.weight.detach(),
    }
    config = settings_of(layer)["transformer_layer_config"]
    module = mtp_oracle.Module("speculators", config, tensors_of(layer), 0, **tables)
    comparing = Compared(method.proposer(handle), partial(mtp_oracle.reuse, module))
    driver = Driver(comparing, method.resolved.traits, handle, shuffle_seed=1)
    driver.run([Script(**{**life.__dict__, "temperature": temperature}) for life in LIVES])
    comparing.close()
    assert not driver.problems
    return comparing


# Drafting


@pytest.mark.parametrize("layer", LAYERS_OF)
def test_the_one_layer_drafts_again_and_again_what_the_formats_say(layer: str, tmp_path: Path) -> None:
    found = compared(tmp_path, layer)
    assert found.count > 60
    assert found.deepest == 4
    assert found.gaps > 0
    assert found.margin > 1e-4


@pytest.mark.parametrize("layer", LAYERS_OF)
def test_its_distributions_are_those_of_the_formats(layer: str, tmp_path: Path) -> None:
    found = compared(tmp_path, layer, temperature=1.3, **DRAWN)
    assert found.count > 60
    assert found.error < 2e-5


def test_it_reads_the_state_before_the_last_norm(tmp_path: Path) -> None:
    traits = resolve_config(tmp_path, model=save(tmp_path / "x")).traits
    assert traits.aux_layers == (LAYERS,)
    assert not traits.hidden


def test_the_engine_generates_with_it_what_it_generates_without(tmp_path: Path) -> None:
    from specdec_engine import LLM, SamplingParams

    model = str(tmp_path / "target")
    target("qwen3").save_pretrained(model)
    file = save(tmp_path / "x", "qwen3", verifier=model)
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": ids} for ids in ([5], list(range(3, 20)))]
    texts = []
    for place, keys in ((model, None), (model, {"model": file}), (file, None)):  # the last one stands for the pair
        with LLM(place, keys, strict=True) as llm:
            assert llm.get_metrics() is not None
            texts.append([result.outputs[0].token_ids for result in llm.generate(prompts, sampling)])
    assert texts[0] == texts[1] == texts[2]


# Detection, conversion, k


@pytest.mark.parametrize("layer", LAYERS_OF)
def test_it_is_claimed_for_certain_among_all_methods(layer: str, tmp_path: Path) -> None:
    record, evidence = detect(DraftSource(save(tmp_path / "x", layer)), Registry(Catalog.discover(), strict=True))
    assert record.name == "mtp"
    assert evidence.startswith("certain: speculators_model_type 'mtp'")


def test_given_as_the_model_it_stands_for_its_target_and_itself(tmp_path: Path) -> None:
    file = save(tmp_path / "x")
    swap = swap_target(DraftSource(file), Registry(Catalog.discover(), strict=True))
    assert swap is not None
    assert (swap.model, swap.speculative_config) == ("some/target", {"method": "mtp", "model": file})
    nameless = save(tmp_path / "y", speculators_config={})
    with pytest.raises(ConfigError, match=r"does not name its target \(speculators_config.verifier.name_or_path\)"):
        mtp.specdec_swap_target(source=DraftSource(nameless))


def test_the_configuration_becomes_that_of_its_layer(tmp_path: Path) -> None:
    resolved = resolve_config(tmp_path, model=save(tmp_path / "x"))
    assert resolved.draft is not None
    config = resolved.draft.hf_config
    assert (config["model_type"], config["n_predict"], config["hidden_size"]) == ("qwen2", 1, HIDDEN)
    assert "model_type" not in resolved.draft.original.hf_config


def test_a_layer_without_a_type_is_one_of_qwen2(tmp_path: Path) -> None:
    base = {k: v for k, v in settings_of("qwen2")["transformer_layer_config"].items() if k != "model_type"}
    resolved = resolve_config(tmp_path, model=save(tmp_path / "x", transformer_layer_config=base))
    assert resolved.draft is not None
    assert resolved.draft.hf_config["model_type"] == "qwen2"


@pytest.mark.parametrize("k", [None, 1, 4, 7])
@pytest.mark.filterwarnings("error")
def test_k_is_what_the_file_proposes_and_any_other_is_right(k: int | None, tmp_path: Path) -> None:
    keys = {} if k is None else {"num_speculative_tokens": k}
    resolved = resolve_config(tmp_path, model=save(tmp_path / "x"), **keys)
    assert resolved.num_speculative_tokens == (k or 3)
    if k is None:
        reasons = {decision.key: decision.reason for decision in resolved.decisions}
        assert reasons["num_speculative_tokens"] == "speculators_config of the checkpoint proposes 3 tokens a step"


def test_explain_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = info_of("qwen2", tmp_path)
    file = save(tmp_path / "x")
    assert main(["explain", "--model", str(info.model), "--speculative-config", json.dumps({"model": file})]) == 0
    out = capsys.readouterr().out
    assert "speculators_model_type 'mtp'" in out
    assert "proposes 3 tokens a step" in out


# Refusals and warnings


def refused(folder: Path, layer: str = "qwen2", **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(folder, layer, model=save(folder / "x", layer, **changes), num_speculative_tokens=1)
    return str(caught.value)


@pytest.mark.parametrize("layer", LAYERS_OF)
def test_a_missing_weight_is_refused_by_name_before_anything_loads(layer: str, tmp_path: Path) -> None:
    whole = tensors_of(layer)
    for name in whole:
        if name.startswith("mtp_layers.") and name.endswith(".weight"):
            left = {other: tensor for other, tensor in whole.items() if other != name}
            assert f"lacks tensors of its MTP modules: {name} (" in refused(tmp_path, layer, tensors=left)


@pytest.mark.parametrize("name", ["mtp_layers.1.input_proj.weight", "model.mtp_layers.1.x", "d2t", "t2d"])
def test_a_tensor_of_a_second_layer_or_of_a_reduced_vocabulary_is_refused(name: str, tmp_path: Path) -> None:
    found = refused(tmp_path, tensors={**tensors_of("qwen2"), name: torch.zeros(1)})
    assert f"it has {name}, and files of this type have one layer, mtp_layers.0" in found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2, and files of this type have one layer"),
        ({"draft_vocab_size": 64}, r"draft_vocab_size 64 of 128"),
        ({"transformer_layer_config": None}, "transformer_layer_config must be the configuration of the head's layers"),
        ({"transformer_layer_config": {"model_type": "qwen3_next"}}, "only layers of qwen2 and qwen3 are built"),
        (
            {"transformer_layer_config": {**GROUPED, "hidden_size": 16, "model_type": "qwen2"}},
            "hidden size 16, the target's 32",
        ),
    ],
)
def test_a_file_of_another_form_is_refused_with_what_it_has(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in refused(tmp_path, **changes)


def test_a_layer_of_the_wrong_shape_is_refused_when_its_weights_are_read(tmp_path: Path) -> None:
    tensors = {**tensors_of("qwen2"), "mtp_layers.0.input_proj.weight": torch.zeros(HIDDEN, HIDDEN)}
    handle = FakeTarget(target("qwen2"))
    handle.info = info_of("qwen2", tmp_path)
    with pytest.raises(ConfigError, match=r"mtp_layers.0.input_proj.weight is \[32, 32\], expected \[32, 64\]"):
        build(Subject("mtp", {"model": save(tmp_path / "x", tensors=tensors)}, None), handle.info, 3).proposer(handle)


def test_tensors_without_a_use_are_warned_about_and_the_head_of_training_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = FakeTarget(target("qwen2"))
    handle.info = info_of("qwen2", tmp_path)
    for extra, words in (({}, []), ({"lm_head.weight": torch.zeros(1)}, ["lm_head.weight"])):
        caplog.clear()
        file = save(tmp_path / "x", tensors={**tensors_of("qwen2"), **extra})
        with caplog.at_level(logging.WARNING, "specdec_plugin_mtp"):
            build(Subject("mtp", {"model": file}, None), handle.info, 3).proposer(handle)
        assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == words
    assert load_file(tmp_path / "x" / "model.safetensors")["verifier_lm_head.weight"].isnan().all()


def test_an_embedding_of_its_own_is_compared_with_the_targets_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = FakeTarget(target("qwen2"))
    handle.info = info_of("qwen2", tmp_path)
    same = target("qwen2").get_input_embeddings().weight.detach().clone()
    for table, count in ((same, 0), (same + 0.5, 1)):
        caplog.clear()
        file = save(tmp_path / "x", tensors={**tensors_of("qwen2"), "embed_tokens.weight": table})
        with caplog.at_level(logging.WARNING, "specdec_plugin_mtp"):
            build(Subject("mtp", {"model": file}, None), handle.info, 3).proposer(handle)
        assert (
            len([r for r in caplog.records if "differs from the target's embedding by up to" in r.getMessage()])
            == count
        )


def test_vllm_is_not_given_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    resolved = resolve_config(tmp_path, model=save(tmp_path / "x"))
    problem = mtp.specdec_vllm_config(ctx=MethodContext.of(resolved, info_of("qwen2", tmp_path)))
    assert isinstance(problem, Problem)
    assert "the target's own checkpoint" in problem.message
