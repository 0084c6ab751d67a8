"""What plugins say of vLLM's own methods: keys that vLLM takes, and reasons where it would draft something else."""

from __future__ import annotations

import pytest
from conftest import engine, tokens
from test_routes import in_vllm, route_of, wrapped
from test_vllm_tokens import CROWDED, params, prompts
from vllm_heads import MTP, dflash, draft_model, from_plugin, mtp_target
from vllm_models import random_llama

from specdec_core.errors import ConfigError


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("deep") / "llama", layers=4)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafts")
    made = from_plugin("dflash", "dflash_checkpoints")
    usual, made.HEAD_DIM = made.HEAD_DIM, 32  # vLLM's CPU kernels know no 8
    try:
        return {make.__name__: make(folder / make.__name__) for make in (dflash, draft_model)}
    finally:
        made.HEAD_DIM = usual


def test_text_by_vllms_own_methods_is_that_of_plain_decoding(llama, drafts):
    with engine(llama) as llm:
        expected = tokens(llm, prompts(), params())
    for method, config in drafts.items():
        with engine(llama, speculative_config=wrapped(config), **CROWDED) as llm:
            assert llm.llm_engine.vllm_config.speculative_config.method == method
            assert tokens(llm, prompts(), params()) == expected, method


@pytest.mark.fast
def test_of_a_targets_own_modules_vllm_finds_the_checkpoint_by_itself(tmp_path):
    target = mtp_target(tmp_path / "target")
    found = route_of(target, {**MTP, "num_speculative_tokens": 1})
    assert (found.name, found.keys) == ("native", {"num_speculative_tokens": 1, "method": "mtp"})
    configured = in_vllm(target, wrapped({**MTP, "num_speculative_tokens": 1})).speculative_config
    assert (configured.method, configured.model) == ("mtp", str(target))


@pytest.mark.fast
def test_families_that_only_vllm_drafts_for_are_left_to_it_and_no_other_way_is_offered(tmp_path):
    made = from_plugin("mtp", "mtp_folders")
    one, keys = {**MTP, "num_speculative_tokens": 1}, {"num_nextn_predict_layers": 1}
    hybrid = made.folder_of(tmp_path / "hybrid", made.config("nemotron_h", "NemotronHForCausalLM", **keys))
    found = route_of(hybrid, one)
    assert (found.name, found.keys["method"]) == ("native", "mtp")
    with pytest.raises(ConfigError, match=r"mtp does not draft for .*recurrent layers"):
        route_of(hybrid, {**one, "route": "bridge"})
    with pytest.raises(ConfigError, match=r"mtp does not draft for .*recurrent layers.*vLLM has no such key"):
        route_of(hybrid, {**one, "disable_by_batch_size": 4})
    v41 = made.folder_of(tmp_path / "v41", made.config("deepseek_v41", "DeepseekV41ForCausalLM", **keys))
    with pytest.raises(ConfigError, match="residual streams of the target, which no host delivers"):
        route_of(v41, one)


@pytest.mark.fast
def test_indices_that_drafts_share_are_left_to_vllm(tmp_path):
    made = from_plugin("mtp", "mtp_folders")
    config = made.config("deepseek_v32", "DeepseekV32ForCausalLM", num_nextn_predict_layers=1)
    shared = {**MTP, "num_speculative_tokens": 1, "index_share_for_mtp_iteration": True}
    assert route_of(made.folder_of(tmp_path / "v32", config), shared).keys["index_share_for_mtp_iteration"] is True


@pytest.mark.fast
def test_options_that_vllm_has_are_passed_on(llama, drafts, tmp_path):
    words = {**drafts["draft_model"], "use_heterogeneous_vocab": True}
    assert route_of(llama, words).keys["use_heterogeneous_vocab"] is True
    schedule = {**drafts["draft_model"], "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 1]]}
    assert route_of(llama, schedule).keys["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 64, 1]]
    assert in_vllm(llama, wrapped(schedule)).speculative_config.method == "draft_model"
    made = from_plugin("eagle", "checkpoints")
    settings = made.config(64, vocab_size=96, mask_token_id=95, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    model = made.save(tmp_path / "parallel", made.eagle_3(64, vocab=96, draft_vocab=96, mask=True), settings)
    keys = route_of(llama, {"method": "eagle3", "model": model, "num_speculative_tokens": 3}).keys
    assert keys["parallel_drafting"] is True
    given = {"disable_padded_drafter_batch": True, "method": "eagle3", "model": model, "num_speculative_tokens": 3}
    assert route_of(llama, given).keys["disable_padded_drafter_batch"] is True


def deeper(folder, **settings):
    made = from_plugin("dflash", "dflash_checkpoints")
    usual = {"dflash_config": {"target_layer_ids": [0, 3], "mask_token_id": 95}}
    tensors = made.trunk(64, 128, seed=0) | made.vocabulary(64, 96, 96, seed=0)
    return {"model": made.save(folder, tensors, made.config(64, vocab_size=96, **{**usual, **settings}))}


REASONS = {
    "texts": ("draft_model", {"use_heterogeneous_vocab": True, "heterogeneous_vocab_method": "text"}, "level of texts"),
    "confidence": ("draft_model", {"draft_confidence_threshold": 0.5}, "draft_confidence_threshold: it was given"),
    "code": ("draft_model", {"trust_remote_code": True}, "trust_remote_code: it was given"),
    "embedding": ("dflash", {"share_embeddings": True}, "share_embeddings: vLLM takes"),
    "layers": (
        "dflash",
        lambda folder: deeper(folder, dflash_config={"mask_token_id": 95}, target_layer_ids=[0, 3]),
        r"vLLM reads the layers \[1, 2\] .* wants \[1, 4\]",
    ),
    "windows": (
        "dflash",
        lambda folder: deeper(folder, layer_types=["sliding_attention", "full_attention"], sliding_window=8),
        "with and without a window",
    ),
}


@pytest.mark.fast
@pytest.mark.parametrize("why", REASONS)
def test_what_vllm_would_draft_otherwise_goes_over_the_bridge(why, llama, drafts, tmp_path):
    method, change, said = REASONS[why]
    config = {**drafts[method], **(change(tmp_path / "draft") if callable(change) else change)}
    assert route_of(llama, config).name == "bridge"
    with pytest.raises(ConfigError, match=said):
        route_of(llama, {**config, "route": "native"})


@pytest.mark.fast
def test_modules_that_draft_one_behind_the_other_are_not_vllms_reuse_of_the_first(tmp_path):
    made = from_plugin("mtp", "mtp_folders")
    target = made.deepseek(tmp_path / "target", 2)
    found = route_of(target, {"method": "mtp", "num_speculative_tokens": 2})
    assert found.name == "bridge" and "2 modules draft in sequence" in found.reason
    again = {"method": "mtp", "num_speculative_tokens": 2, "mtp_recurrence": "reuse"}
    assert route_of(target, again).name == "native"
