"""What a checkpoint is read as, by what the file itself says; what cannot be read or honoured is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from redrafter_checkpoints import (
    INFO,
    VOCAB,
    WIDTH,
    built,
    config,
    random_drafter,
    resolve_config,
    save,
    tensorrt_config,
    tensorrt_tensors_of,
    tensors_of,
)
from redrafter_layouts import LAYOUTS

from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource
from specdec_plugin_redrafter.detection import detect
from specdec_plugin_redrafter.layout import RedrafterReader
from specdec_testing.watching import evidence

# Two layouts for every change, all of them in `make test`.
SOME_OFTEN = [name if i < 2 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]
ONE = random_drafter(1)
PLAIN = LAYOUTS["recurrent"]
PROJECTED = LAYOUTS["projected"]


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_every_layout_is_read_and_no_tensor_of_it_is_left_over(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    model = layout.save(tmp_path / "x")
    resolved = resolve_config(model, method=None)
    assert (resolved.method, resolved.num_speculative_tokens) == ("redrafter", 4)
    assert (resolved.traits.rows, resolved.traits.hidden, resolved.traits.weights) == ("last", True, "own")
    assert resolved.num_lookahead_slots == 0, "it keeps no cache"
    reader = RedrafterReader(DraftSource(model), INFO)
    found = reader.layout()
    assert found is not None
    assert (found.layers, found.recurrent, found.notes) == (
        len(layout.parts.layers),
        layout.parts.rnn is not None,
        (),
    )
    unread = set(reader.others) - {"emb_norm.weight", "lm_head.weight", "transformer.layers.0.mlp.fc.weight"}
    assert unread == set()


@pytest.mark.parametrize(
    ("settings", "tensors", "said"),
    [
        (
            {"model_type": "recurrent_drafting_drafter"},
            tensors_of(ONE),
            "certain: model_type 'recurrent_drafting_drafter'",
        ),
        (tensorrt_config(ONE), tensorrt_tensors_of(ONE), "certain: redrafter_num_beams 5"),
        ({}, tensors_of(ONE), "certain: tensor rnn_u.weight, tensor rnn_w.weight, tensor lm_head.1.weight"),
        ({}, tensors_of(random_drafter(1, rnn=False)), "likely: tensor lm_head.1.weight"),
    ],
)
def test_the_evidence_is_what_the_file_says(
    settings: dict[str, Any], tensors: dict[str, torch.Tensor], said: str, tmp_path: Path
) -> None:
    assert said in evidence(resolve_config(save(tmp_path / "x", tensors, settings), method=None))


@pytest.mark.parametrize(
    "names",
    [["lm_head.weight"], ["0.0.linear.weight", "0.1.weight"], ["rnn_u.weight"], ["model.layers.0.mlp.up_proj.weight"]],
)
def test_other_tensors_are_not_claimed(names: list[str], tmp_path: Path) -> None:
    """The second are those of a Medusa head as well."""
    model = save(tmp_path / "redrafter", {name: torch.zeros(2, 2) for name in names}, {"model_type": "x"})
    assert detect(DraftSource(model)) is None


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"num_draft_layers": 3}, "num_draft_layers 3, and the tensors have 1 layers"),
        ({"exit_dim": 5}, f"exit_dim 5, and the tensors have a width of {2 * WIDTH}"),
        ({"rnn": False}, "rnn False, and the tensors have a recurrent network"),
        ({}, ""),
    ],
)
def test_tensors_win_over_the_config_with_one_warning(
    settings: dict[str, Any], note: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = save(tmp_path / "x", tensors_of(ONE), config(ONE, **settings))
    with caplog.at_level(logging.WARNING):
        built(model)
    assert [note in record.message for record in caplog.records] == ([True] if note else [])


def test_a_tensor_of_no_drafter_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save(tmp_path / "x", {**tensors_of(ONE), "adapter.weight": torch.zeros(2, 2)}, config(ONE))
    with caplog.at_level(logging.WARNING):
        built(model)
    assert ["belong to no drafter: adapter.weight" in record.message for record in caplog.records] == [True]


def test_all_missing_tensors_are_in_one_error(tmp_path: Path) -> None:
    lost = ("lm_head.0.linear.bias", "lm_head.2.weight", "input_proj.bias", "rnn_w.weight")
    left = {name: tensor for name, tensor in PROJECTED.tensors.items() if name not in lost}
    model = save(tmp_path / "x", left, PROJECTED.settings)
    said = (
        r"these tensors are missing: layers\.0\.linear\.bias, output\.weight, input_proj\.bias, rnn_w\.weight "
        r"\(the file is incomplete"
    )
    for run in (resolve_config, built):
        with pytest.raises(ConfigError, match=said):
            run(model)


def test_a_recurrent_network_that_the_config_promises_must_be_there(tmp_path: Path) -> None:
    drafter = random_drafter(1, rnn=False)
    model = save(tmp_path / "x", tensors_of(drafter), config(drafter, rnn=True))
    with pytest.raises(ConfigError, match=r"missing: rnn_u\.weight, rnn_u\.bias, rnn_w\.weight"):
        resolve_config(model)


def test_a_layer_that_is_missing_shows_by_the_outputs_number(tmp_path: Path) -> None:
    left = {name: tensor for name, tensor in PLAIN.tensors.items() if not name.startswith("lm_head.1.")}
    with pytest.raises(ConfigError, match=r"lm_head\.2\.weight is behind 2 layers, and 1 are there"):
        resolve_config(save(tmp_path / "x", left, {**(PLAIN.settings or {})}))


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("lm_head.0.linear.weight", (2 * WIDTH, 5), rf"is \[{2 * WIDTH}, 5\], and .* has \[{2 * WIDTH}, {2 * WIDTH}\]"),
        ("rnn_u.bias", (3,), rf"rnn_u\.bias is \[3\], and .* has \[{WIDTH}\]"),
        ("rnn_w.weight", (WIDTH, WIDTH + 1), rf"rnn_w\.weight is \[{WIDTH}, {WIDTH + 1}\]"),
        ("lm_head.2.weight", (VOCAB + 1025, 2 * WIDTH), f"for {VOCAB + 1025} ids and the target has {VOCAB}"),
        (
            "lm_head.2.weight",
            (VOCAB, 24),
            r"\[state ; draft\] of width .* needs input_proj\.weight and input_proj\.bias",
        ),
    ],
)
def test_tensors_of_another_shape_are_refused_with_both(
    name: str, shape: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    model = save(tmp_path / "x", {**PLAIN.tensors, name: torch.zeros(shape)}, PLAIN.settings)
    with pytest.raises(ConfigError, match=said):
        resolve_config(model)


def test_a_drafter_for_another_target_is_refused_with_both_widths(tmp_path: Path) -> None:
    wide = random_drafter(width=WIDTH + 8)
    model = save(tmp_path / "x", tensors_of(wide), config(wide, hidden_size=WIDTH + 8))
    with pytest.raises(ConfigError, match=f"for a target of width {WIDTH + 8}, and this one has {WIDTH}"):
        resolve_config(model)


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    whole = {name: tensor.to(torch.int8) for name, tensor in PLAIN.tensors.items()}
    with pytest.raises(ConfigError, match=r"is int8; recurrent drafters are read in floating point"):
        resolve_config(save(tmp_path / "x", whole, PLAIN.settings))


@pytest.mark.parametrize(
    ("keys", "k", "shape"),
    [
        ({}, 4, "chain"),
        ({"num_speculative_tokens": 9}, 9, "chain"),
        ({"num_beams": 5}, 20, "tree"),
        ({"num_beams": 5, "beam_depth": 3, "verified_beams": 2}, 6, "tree"),
        ({"num_beams": 5, "verified_beams": 1}, 4, "chain"),
        ({"num_beams": 5, "verified_beams": 1, "num_speculative_tokens": 7}, 7, "chain"),
        ({"num_beams": 1, "beam_depth": 2}, 2, "chain"),
    ],
)
def test_k_is_what_the_beams_can_have(keys: dict[str, Any], k: int, shape: str, tmp_path: Path) -> None:
    resolved = resolve_config(PLAIN.save(tmp_path / "x"), **keys)
    assert (resolved.num_speculative_tokens, resolved.traits.shape) == (k, shape)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_beams": 51}, "num_beams"),
        ({"verified_beams": 2}, "verified_beams belong to a beam search; give num_beams"),
        ({"num_beams": 2, "verified_beams": 3}, "verified_beams is 3, and there are 2 beams"),
        ({"num_beams": 2, "beam_depth": 3, "num_speculative_tokens": 7}, "7 given, .* at most 6"),
        ({"num_beams": 2, "draft_sample_method": "probabilistic"}, "the trees of redrafter are fixed"),
        (
            {"num_beams": 2, "verified_beams": 1, "draft_sample_method": "probabilistic"},
            "the drafts of redrafter are fixed",
        ),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config(PLAIN.save(tmp_path / "x"), **keys)


def test_more_beams_than_ids_are_refused(tmp_path: Path) -> None:
    few = random_drafter(1, rows=20, width=WIDTH)
    info = type(INFO)(**{**INFO.__dict__, "vocab_size": 20})
    with pytest.raises(ConfigError, match="30 beams would begin with as many ids, and the drafter knows 20"):
        resolve_config(save(tmp_path / "x", tensors_of(few), config(few)), info, num_beams=30)


def test_a_checkpoint_without_a_drafter_is_named_with_its_type(tmp_path: Path) -> None:
    model = save(tmp_path / "x", {"model.norm.weight": torch.zeros(2)}, {"model_type": "llama"})
    with pytest.raises(ConfigError, match=r"no recurrent drafter.*model_type 'llama'.*name the method that"):
        resolve_config(model, method="redrafter")
    with pytest.raises(ConfigError, match="none was given"):
        resolve_config(None, method="redrafter", num_speculative_tokens=2)
