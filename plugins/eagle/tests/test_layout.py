"""What a checkpoint is read as, and what is refused, each with the shape or the name that does not fit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from layouts import LAYOUTS
from torch import Tensor

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError
from specdec_core.host.factory import make_proposer
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource, TargetInfo
from specdec_plugin_eagle.layout import EagleReader, Layout
from specdec_plugin_eagle.options import EagleOptions
from specdec_testing.fakes import FakeTarget
from specdec_testing.targets import tiny_target

TARGET = tiny_target("llama", num_hidden_layers=8)
WIDTH, VOCAB = TARGET.config.hidden_size, TARGET.config.vocab_size
INFO: TargetInfo = FakeTarget(TARGET).info
AUX = [2, 4, 5]


def eagle_3(**settings: Any) -> dict[str, Tensor]:
    return checkpoints.eagle_3(WIDTH, **{"vocab": VOCAB, "draft_vocab": 40, **settings})


def resolve_config(model: str, **keys: Any) -> ResolvedConfig:
    return resolve({"model": model, "num_speculative_tokens": 3, **keys}, INFO, Registry(Catalog.discover()))


def built(model: str, **keys: Any) -> None:
    registry = Registry(Catalog.discover())
    resolved = resolve({"model": model, "num_speculative_tokens": 3, **keys}, INFO, registry)
    make_proposer(resolved, FakeTarget(TARGET), registry).close()


def layout(model: str, method: str, **options: Any) -> Layout:
    found = EagleReader(method, DraftSource(model), EagleOptions(**options), INFO).layout()
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["midlayer.", "layers.0.", "model.midlayer.", "model.layers.0."])
@pytest.mark.parametrize("torch_file", [False, True])
def test_every_spelling_is_recognised_without_a_word_in_the_path(tmp_path: Path, layer: str, torch_file: bool) -> None:
    model = checkpoints.save(tmp_path / "x", eagle_3(layer=layer), checkpoints.config(WIDTH), torch_file=torch_file)
    assert resolve_config(model).method == "eagle3"


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("bias", [False, True])
def test_a_head_of_the_first_generation_is_recognised(tmp_path: Path, prefix: str, bias: bool) -> None:
    tensors = checkpoints.eagle_1(WIDTH, prefix=prefix, bias=bias)
    model = checkpoints.save(tmp_path / "eagle3-run", tensors, checkpoints.config(WIDTH, architectures=None))
    assert resolve_config(model).method == "eagle"
    assert resolve_config(model).traits.hidden


def test_the_wrong_generation_is_refused_with_the_right_one(tmp_path: Path) -> None:
    first = checkpoints.save(tmp_path / "a", checkpoints.eagle_1(WIDTH), checkpoints.config(WIDTH))
    third = checkpoints.save(tmp_path / "b", eagle_3(), checkpoints.config(WIDTH))
    with pytest.raises(ConfigError, match='"method": "eagle"'):
        resolve_config(first, method="eagle3")
    with pytest.raises(ConfigError, match='"method": "eagle3"'):
        resolve_config(third, method="eagle")


def test_a_head_for_another_target_is_refused_with_both_shapes(tmp_path: Path) -> None:
    wide = checkpoints.save(tmp_path / "a", checkpoints.eagle_1(WIDTH + 8), checkpoints.config(WIDTH + 8))
    with pytest.raises(ConfigError, match=rf"\[{WIDTH + 8}, {2 * WIDTH + 16}\].*\[{WIDTH}, {2 * WIDTH}\]"):
        resolve_config(wide, method="eagle")
    said = checkpoints.config(WIDTH, target_hidden_size=WIDTH + 1)
    with pytest.raises(ConfigError, match=f"width {WIDTH + 1}, and this one has {WIDTH}"):
        resolve_config(checkpoints.save(tmp_path / "b", eagle_3(), said), method="eagle3")


@pytest.mark.parametrize("architecture", ["EagleDeepSeekMTPModel", "EagleCohereForCausalLM", "MistralLarge3Model"])
def test_a_family_that_is_not_built_is_refused_by_name(tmp_path: Path, architecture: str) -> None:
    settings = checkpoints.config(WIDTH, architectures=[architecture])
    model = checkpoints.save(tmp_path / "x", checkpoints.eagle_1(WIDTH), settings)
    with pytest.raises(ConfigError, match=architecture):
        resolve_config(model, method="eagle")


@pytest.mark.parametrize("name", ["midlayer.self_attn.o_proj.weight", "norm.weight", "midlayer.mlp.up_proj.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = eagle_3()
    del tensors[name]
    with pytest.raises(ConfigError, match=name.replace("midlayer", "layers.0")):
        resolve_config(checkpoints.save(tmp_path / "x", tensors, checkpoints.config(WIDTH)), method="eagle3")


def test_a_smaller_vocabulary_needs_its_map_row_61(tmp_path: Path) -> None:
    tensors = eagle_3()
    del tensors["d2t"]
    with pytest.raises(ConfigError, match=f"40 ids, the target {VOCAB}, and the map d2t"):
        resolve_config(checkpoints.save(tmp_path / "x", tensors, checkpoints.config(WIDTH)), method="eagle3")


def test_a_map_of_the_whole_vocabulary_may_be_absent_or_zero_row_62(tmp_path: Path) -> None:
    tensors = eagle_3(draft_vocab=VOCAB)
    absent = checkpoints.save(tmp_path / "a", tensors, checkpoints.config(WIDTH))
    assert resolve_config(absent, method="eagle3").traits.vocabulary == "target"
    tensors["d2t"] = torch.zeros(VOCAB, dtype=torch.int64)
    built(checkpoints.save(tmp_path / "b", tensors, checkpoints.config(WIDTH)), method="eagle3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d2t": torch.zeros(40, dtype=torch.int64).index_fill(0, torch.tensor([1]), -1)}, "more than once"),
        ({"d2t": torch.full((40,), 10_000)}, "names ids"),
        ({"t2d": torch.ones(VOCAB, dtype=torch.bool)}, "d2t and t2d"),
        ({"d2t": torch.zeros(40)}, "d2t is float32, and whole numbers were expected"),
    ],
)
@pytest.mark.parametrize("torch_file", [False, True])
def test_a_map_that_contradicts_itself_is_refused_before_weights_are_read(
    tmp_path: Path, change: dict[str, Tensor], message: str, torch_file: bool
) -> None:
    model = checkpoints.save(tmp_path / "x", eagle_3() | change, checkpoints.config(WIDTH), torch_file=torch_file)
    with pytest.raises(ConfigError, match=message):
        resolve_config(model, method="eagle3")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("midlayer.mlp.up_proj.weight", (2 * WIDTH, WIDTH + 1)),
        ("midlayer.hidden_norm.weight", (WIDTH + 1,)),
        ("norm.weight", (WIDTH, 1)),
        ("midlayer.mlp.gate_proj.weight", (7, WIDTH)),
    ],
)
def test_every_shape_is_compared_with_the_heads_width_before_weights_are_read(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    model = checkpoints.save(tmp_path / "x", eagle_3() | {name: torch.zeros(shape)}, checkpoints.config(WIDTH))
    with pytest.raises(ConfigError, match=r"and its config\.json makes it \["):
        resolve_config(model, method="eagle3")


def test_weights_that_are_not_in_floating_point_are_refused_before_they_are_read(tmp_path: Path) -> None:
    tensors = eagle_3() | {"fc.weight": torch.zeros(WIDTH, 3 * WIDTH, dtype=torch.int8)}
    with pytest.raises(ConfigError, match=r"fc\.weight is int8; heads are read in floating point"):
        resolve_config(checkpoints.save(tmp_path / "x", tensors, checkpoints.config(WIDTH)), method="eagle3")


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight", "t2d"])
def test_a_table_of_another_vocabulary_is_refused_and_padding_is_not(tmp_path: Path, name: str) -> None:
    def saved(rows: int) -> str:
        table = torch.ones(rows, dtype=torch.bool) if name == "t2d" else torch.zeros(rows, WIDTH)
        tensors = eagle_3(draft_vocab=VOCAB) | {name: table}
        return checkpoints.save(tmp_path / str(rows), tensors, checkpoints.config(WIDTH))

    resolve_config(saved(VOCAB + 1024), method="eagle3")
    with pytest.raises(ConfigError, match=f"{name} is for {VOCAB + 1025} ids and the target has {VOCAB}, .* padding"):
        resolve_config(saved(VOCAB + 1025), method="eagle3")


def test_a_head_whose_config_names_another_vocabulary_is_warned_about_at_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = checkpoints.config(WIDTH, vocab_size=VOCAB + 1025)
    with caplog.at_level(logging.WARNING):
        built(checkpoints.save(tmp_path / "x", checkpoints.eagle_1(WIDTH), settings), method="eagle")
    assert "drafts of a head for another tokenizer are never accepted" in caplog.text


def test_a_missing_head_is_borrowed_where_sizes_agree_and_refused_elsewhere_row_81(tmp_path: Path) -> None:
    tensors = eagle_3(draft_vocab=VOCAB)
    del tensors["lm_head.weight"]
    same = checkpoints.save(tmp_path / "a", tensors, checkpoints.config(WIDTH, draft_vocab_size=VOCAB))
    built(same, method="eagle3")
    fewer = checkpoints.save(tmp_path / "b", tensors, checkpoints.config(WIDTH, draft_vocab_size=40))
    with pytest.raises(ConfigError, match=r"no lm_head.weight"):
        resolve_config(fewer, method="eagle3")


def test_sizes_in_the_config_that_the_tensors_contradict_are_refused_with_both(tmp_path: Path) -> None:
    model = checkpoints.save(tmp_path / "x", eagle_3(), checkpoints.config(WIDTH, draft_vocab_size=41))
    with pytest.raises(ConfigError, match=r"40 rows, and config\.json has draft_vocab_size 41"):
        resolve_config(model, method="eagle3")


@pytest.mark.parametrize(
    ("settings", "options", "wanted"),
    [
        ({}, {}, (2, 4, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [6, 1, 3]}, {}, (1, 3, 6)),
        ({"eagle_aux_hidden_state_layer_ids": None}, {}, (2, 4, 5)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}, {}, (2, 4, 5)),
        ({"eagle_config": {"layer_ids": [1, 3, 4]}}, {"aux_layer_numbering": "input"}, (1, 3, 4)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, {"aux_layer_numbering": "output"}, (2, 4, 5)),
        ({}, {"eagle_aux_hidden_state_layer_ids": (0, 4, 8)}, (0, 4, 8)),
    ],
)
def test_states_are_counted_as_their_producer_counts_them(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], wanted: tuple[int, ...]
) -> None:
    model = checkpoints.save(tmp_path / "x", eagle_3(), checkpoints.config(WIDTH, **settings))
    assert layout(model, "eagle3", **options).aux == wanted


def test_defaults_are_the_published_ones() -> None:
    from specdec_plugin_eagle.aux_layers import aux_layers

    for layers, wanted in ((28, (2, 14, 25)), (32, (2, 16, 29)), (36, (2, 18, 33)), (64, (2, 32, 61))):
        assert aux_layers({}, EagleOptions(), layers, 3).layers == wanted


def test_the_number_of_states_comes_from_the_tensor_row_87(tmp_path: Path) -> None:
    settings = checkpoints.config(WIDTH, eagle_aux_hidden_state_layer_ids=[1, 2, 3, 4])
    assert layout(checkpoints.save(tmp_path / "a", eagle_3(aux=4), settings), "eagle3").aux == (1, 2, 3, 4)
    with pytest.raises(ConfigError, match="takes 4 states of the target, and the default"):
        resolve_config(checkpoints.save(tmp_path / "b", eagle_3(aux=4), checkpoints.config(WIDTH)), method="eagle3")
    with pytest.raises(ConfigError, match=r"not all within the target's 0 \.\. 8"):
        resolve_config(
            checkpoints.save(tmp_path / "c", eagle_3(), checkpoints.config(WIDTH)),
            method="eagle3",
            eagle_aux_hidden_state_layer_ids=[1, 2, 9],
        )


def test_an_embedding_that_differs_is_used_and_said_and_may_be_shared_row_82(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = checkpoints.save(tmp_path / "a", eagle_3(own_embedding=True), checkpoints.config(WIDTH))
    with caplog.at_level(logging.WARNING):
        built(model, method="eagle3")
    assert "differs from the target's embedding by up to" in caplog.text
    caplog.clear()
    tensors = eagle_3() | {"embed_tokens.weight": TARGET.get_input_embeddings().weight.detach().clone()}
    with caplog.at_level(logging.WARNING):
        built(model, method="eagle3", share_embeddings=True)
        built(checkpoints.save(tmp_path / "b", tensors, checkpoints.config(WIDTH)), method="eagle3")
    assert not caplog.text


@pytest.mark.parametrize("missing", [{"vocab_size": None}, {"model_type": None}, {"model_type": "eagle"}])
def test_a_config_that_names_little_is_enough_rows_67_and_70(tmp_path: Path, missing: dict[str, Any]) -> None:
    built(checkpoints.save(tmp_path / "x", checkpoints.eagle_1(WIDTH), checkpoints.config(WIDTH, **missing)))


def test_a_config_without_heads_is_refused_by_the_missing_key(tmp_path: Path) -> None:
    settings = checkpoints.config(WIDTH, num_attention_heads=None)
    with pytest.raises(ConfigError, match="num_attention_heads"):
        resolve_config(checkpoints.save(tmp_path / "x", checkpoints.eagle_1(WIDTH), settings), method="eagle")


def test_parallel_drafting_needs_its_tensor_and_its_id(tmp_path: Path) -> None:
    plain = checkpoints.save(tmp_path / "a", eagle_3(), checkpoints.config(WIDTH))
    with pytest.raises(ConfigError, match="mask_hidden"):
        resolve_config(plain, method="eagle3", parallel_drafting=True)
    masked = checkpoints.save(tmp_path / "b", eagle_3(mask=True), checkpoints.config(WIDTH))
    with pytest.raises(ConfigError, match="mask_token_id"):
        resolve_config(masked, method="eagle3")
    assert resolve_config(masked, method="eagle3", parallel_drafting=False).traits.extra_slots == 0
    marked = checkpoints.save(tmp_path / "c", eagle_3(mask=True), checkpoints.config(WIDTH, pard_token=7))
    assert resolve_config(marked, method="eagle3").traits.extra_slots == 2


@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_a_speculators_checkpoint_is_read_as_draft_and_as_target(tmp_path: Path, kind: str) -> None:
    base = {key: value for key, value in checkpoints.config(WIDTH).items() if key != "architectures"}
    settings = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": base,
        "draft_vocab_size": 40,
        "eagle_aux_hidden_state_layer_ids": AUX,
        "mask_token_id": 3,
    }
    tensors = eagle_3(layer="layers.0.", mask=kind == "peagle")
    model = checkpoints.save(tmp_path / "x", tensors, settings)
    registry = Registry(Catalog.discover())
    found = resolve({"model": model}, INFO, registry)
    assert (found.method, found.num_speculative_tokens) == ("eagle3", 5)
    assert found.draft is not None
    # The key that is missing means another thing in each type.
    assert found.draft.hf_config["norm_before_residual"] is (kind == "eagle3")
    from specdec_core.config.resolve import swap_target

    swap = swap_target(DraftSource(model), registry)
    assert swap is not None
    assert (swap.model, swap.speculative_config["method"], swap.speculative_config["model"]) == (
        "some/target",
        "eagle3",
        model,
    )


def test_a_file_of_speculators_first_type_is_an_eagle_1_head_with_its_own_k_and_target(tmp_path: Path) -> None:
    layout = LAYOUTS["eagle-speculators-fc-bias"]
    model = checkpoints.save(tmp_path / "x", layout.tensors, layout.settings)
    registry = Registry(Catalog.discover())
    found = resolve({"model": model}, INFO, registry)
    assert (found.method, found.num_speculative_tokens, found.traits.hidden) == ("eagle", 5, True)
    from specdec_core.config.resolve import swap_target

    swap = swap_target(DraftSource(model), registry)
    assert swap is not None
    assert (swap.model, swap.speculative_config["method"]) == ("some/target", "eagle")


@pytest.mark.parametrize(
    ("settings", "tensor", "message"),
    [
        ({"layernorms": True}, None, r"\(layernorms true in config.json\)"),
        ({}, "pre_lm_head_layernorm.weight", r"\(pre_lm_head_layernorm.weight\), and it is published nowhere"),
        ({"transformer_layer_architecture": "Qwen2DecoderLayer"}, None, "have one LlamaDecoderLayer"),
    ],
)
def test_what_that_type_does_not_define_is_refused_with_what_is_there(
    tmp_path: Path, settings: dict[str, Any], tensor: str | None, message: str
) -> None:
    layout = LAYOUTS["eagle-speculators"]
    more = {} if tensor is None else {tensor: torch.ones(WIDTH)}
    model = checkpoints.save(tmp_path / "x", {**layout.tensors, **more}, {**layout.settings, **settings})
    with pytest.raises(ConfigError, match=message):
        resolve_config(model, method="eagle")


def test_an_eagle_1_head_with_norms_that_nothing_here_applies_is_refused(tmp_path: Path) -> None:
    tensors = {**checkpoints.eagle_1(WIDTH), "embed_layernorm.weight": torch.ones(WIDTH)}
    with pytest.raises(ConfigError, match=r"norms around its embedding and its output \(embed_layernorm.weight\)"):
        resolve_config(checkpoints.save(tmp_path / "x", tensors, checkpoints.config(WIDTH)), method="eagle")


@pytest.mark.parametrize("change", [{"transformer_layer_config": None}, {"speculators_model_type": "hydra"}])
def test_a_speculators_checkpoint_of_another_kind_is_not_taken(tmp_path: Path, change: dict[str, Any]) -> None:
    settings = {
        "speculators_model_type": "eagle3",
        "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}], "verifier": {"name_or_path": "x"}},
        "transformer_layer_config": checkpoints.config(WIDTH),
    } | change
    tensors = {"fc.weight": torch.zeros(WIDTH, 3 * WIDTH), "hidden_norm.weight": torch.ones(WIDTH)}
    with pytest.raises(Exception, match=r"transformer_layer_config|no installed method|recognises"):
        resolve_config(checkpoints.save(tmp_path / "x", tensors, settings))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("[(0,), (1, 0)]", r"\(1, 0\) has no parent"),
        ("[(0,), (0,)]", r"\(0,\) is there twice"),
        ("[(1,)]", r"\(1,\) skips a rank"),
        ("[(0,), (-1,)]", "whole numbers"),
        ("[]", "list of paths"),
        ("__import__('os')", "list of paths"),
        ("[(0,), 3]", "whole numbers"),
    ],
)
def test_a_bad_tree_is_refused_with_the_first_path_that_offends(tmp_path: Path, tree: str, message: str) -> None:
    model = checkpoints.save(tmp_path / "x", checkpoints.eagle_1(WIDTH), checkpoints.config(WIDTH))
    with pytest.raises(ConfigError, match=message):
        resolve_config(model, method="eagle", speculative_token_tree=tree)


def test_a_tree_is_sorted_breadth_first_and_says_k(tmp_path: Path) -> None:
    model = checkpoints.save(tmp_path / "x", checkpoints.eagle_1(WIDTH), checkpoints.config(WIDTH))
    keys = {"method": "eagle", "model": model, "speculative_token_tree": "[(0,0), (1,), (0,), (0,0,0), (0,1)]"}
    found = resolve(keys, INFO, Registry(Catalog.discover()))
    assert found.num_speculative_tokens == 5
    assert found.traits.shape == "tree"
    assert isinstance(found.options, EagleOptions)
    assert found.options.speculative_token_tree == ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))
    chain = resolve({**keys, "speculative_token_tree": "[(0,), (0, 0)]"}, INFO, Registry(Catalog.discover()))
    assert chain.traits.shape == "chain"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tree_top_k": 2, "draft_sample_method": "probabilistic"}, "the trees of eagle are fixed here"),
        ({"tree_top_k": 2, "speculative_token_tree": "[(0,)]"}, "exclude each other"),
        ({"speculative_token_tree": [(rank,) for rank in range(VOCAB + 1)]}, f"{VOCAB + 1} children"),
        ({"speculative_token_tree": "[(0,),(1,)]"}, "3 given, and the tree of eagle has 2 nodes"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    model = checkpoints.save(tmp_path / "x", checkpoints.eagle_1(WIDTH), checkpoints.config(WIDTH))
    with pytest.raises(ConfigError, match=message):
        resolve_config(model, method="eagle", **keys)
