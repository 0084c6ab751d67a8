"""Arctic's LSTM speculators: drafts are those of an independent derivation, layouts are read, bad ones refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from arctic_oracle import Lstm
from mlp_speculator_checkpoints import (
    GATES,
    INNER,
    TARGET,
    VOCAB,
    WIDTH,
    built,
    lstm_config,
    lstm_tensors,
    resolve_config,
    save,
)
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_engine import LLM, SamplingParams
from specdec_plugin_mlp_speculator.network import Cell, CellSpeculator
from specdec_testing.targets import tiny_target
from specdec_testing.watching import Watch, assert_all_are, evidence
from specdec_testing.watching import driven as drive

PLAIN, SHORT = lstm_tensors(seed=1), lstm_tensors(seed=5, rows=VOCAB - 8)
PADDED = {**lstm_tensors(seed=4, rows=VOCAB + 8)}
PADDED["head.0.weight"][VOCAB:] *= 50  # rows of padding that would win everywhere
# Tensors as stored, config.json, the oracle's tensors, whether the input is scaled.
KINDS: dict[str, tuple[dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "as published": (PLAIN, lstm_config(), PLAIN),
    "every copy": (lstm_tensors(seed=2, copies=3), lstm_config(), lstm_tensors(seed=2)),
    "prefixed, scaled": (
        {f"speculator.{name}": tensor for name, tensor in lstm_tensors(seed=3).items()},
        lstm_config(scale_input=True, n_predict=4, num_lookahead_tokens=None, model_type=None),
        lstm_tensors(seed=3),
    ),
    "another class, numbers": (
        lstm_tensors(seed=6),
        lstm_config(architectures=["MLPVariantSpeculatorPreTrainedModel"], inner_dim=INNER, emb_dim=[INNER]),
        lstm_tensors(seed=6),
    ),
    "padded": (PADDED, lstm_config(vocab_size=VOCAB + 8), PADDED),
    "fewer ids": (SHORT, lstm_config(vocab_size=VOCAB - 8), SHORT),
    "one step": (lstm_tensors(seed=7), lstm_config(n_predict=1, num_lookahead_tokens=1), lstm_tensors(seed=7)),
}


def oracle_of(kind: str) -> Lstm:
    _, settings, tensors = KINDS[kind]
    return Lstm(tensors, settings["n_predict"], scale_input=settings["scale_input"], vocab_size=VOCAB)


def written(kind: str, folder: Path) -> str:
    tensors, settings, _ = KINDS[kind]
    return save(folder, tensors, settings)


def driven(kind: str, folder: Path, **keys: Any) -> Watch:
    """Run the speculator through the lives of some requests, gaps and preemptions among them."""
    return drive(*built(written(kind, folder), **keys))


@pytest.mark.parametrize("kind", KINDS)
def test_chains_of_every_layout_are_the_oracles(kind: str, tmp_path: Path) -> None:
    watch, oracle = driven(kind, tmp_path / "x", method=None), oracle_of(kind)  # the method is detected
    assert max(len(row.tokens) for row in watch.rows) == oracle.n_predict
    assert_all_are(watch.rows, lambda row: oracle.chain(row.state, row.text[-1], row.limit), clear=1e-5)


def test_trees_are_the_oracles(tmp_path: Path) -> None:
    watch = driven("as published", tmp_path / "x", n_candidates=4, top_k_tokens_per_head=[3, 2, 2])
    oracle = oracle_of("as published")
    assert_all_are(watch.rows, lambda row: oracle.tree(row.state, row.text[-1], (3, 2, 2), 4, row.limit), clear=1e-6)


@pytest.mark.parametrize("kind", ["as published", "padded", "fewer ids"])
def test_drawn_drafts_report_the_oracles_distributions(kind: str, tmp_path: Path) -> None:
    oracle, compared = oracle_of(kind), 0
    for row in driven(kind, tmp_path / "x", draft_sample_method="probabilistic").rows:
        if row.temperature == 0:
            continue
        assert row.distributions is not None
        wanted = oracle.distributions(row.state, row.text[-1], row.tokens, row.temperature)
        for distribution_row, distribution in zip(row.distribution_rows, wanted, strict=True):
            torch.testing.assert_close(row.distributions[distribution_row].double(), distribution, atol=2e-6, rtol=1e-3)
            compared += 1
    assert compared > 60


def test_the_cell_is_the_worked_one() -> None:
    eye = torch.eye(2, dtype=torch.float64).repeat(4, 1)
    one = (torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    cell = Cell((lambda x: x @ eye.T,) * 2, torch.ones(3, 2, dtype=torch.float64), one, one, lambda x: x)
    speculator = CellSpeculator(cell, 0.509825, scale_input=False)
    carried = speculator.step(0, speculator.begin(torch.tensor([[1.0, 0.0]]).double()), torch.tensor([1]))
    wanted = torch.tensor([[1.043984, 0.100196, 0.998492, 0.190668]]).double()
    torch.testing.assert_close(carried, wanted, atol=2e-6, rtol=0)


def test_it_is_recognised_with_k_and_evidence(tmp_path: Path) -> None:
    resolved = resolve_config(written("as published", tmp_path / "a"), method=None)
    assert (resolved.method, resolved.num_speculative_tokens) == ("mlp_speculator", 3)
    assert "ArcticLSTMSpeculatorPreTrainedModel" in evidence(resolved)
    assert (resolved.traits.rows, resolved.traits.hidden) == ("last", True)
    bare = resolve_config(save(tmp_path / "b", PLAIN, lstm_config(architectures=None, model_type=None)), method=None)
    assert "likely: tensor forget_emb.0.weight, tensor forget_proj.0.weight" in evidence(bare)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "sum_rnn"}, "has method 'sum_rnn', and its tensors are those of 'sum_lstm'"),
        ({"method": "sum_gru"}, "has method 'sum_gru', and known are sum_rnn and sum_lstm"),
        ({"tie_lstm_embs": False}, "tie_lstm_embs False, and .* tie_lstm_embs true"),
        ({"tie_weights": None}, "tie_weights None, and"),
        ({"inner_dim": f"{INNER}.{INNER}"}, "several layers for one, which are not built here"),
        ({"proj_dim": [INNER, INNER]}, "several layers for one"),
        ({"proj_dim": "25"}, rf"has proj_dim 25, and forget_proj.0.weight is \[{INNER}, {WIDTH}\]"),
        ({"emb_dim": 25}, "has emb_dim 25"),
        ({"inner_dim": "wide"}, "inner_dim 'wide', and that is a whole number"),
        ({"input_hidden_dim": 48}, f"for a target of width 48, and this one has {WIDTH}"),
        ({"n_predict": None, "num_lookahead_tokens": None}, "has no n_predict"),
    ],
)
def test_a_configuration_that_the_tensors_contradict_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config(save(tmp_path / "x", PLAIN, lstm_config(**keys)))


def test_a_target_of_another_class_is_refused_with_both(tmp_path: Path) -> None:
    from dataclasses import replace

    from mlp_speculator_checkpoints import INFO

    info = replace(INFO, hf_config={**INFO.hf_config, "architectures": ["Qwen3ForCausalLM"]})
    with pytest.raises(ConfigError, match=r"classes \['LlamaForCausalLM'\] .* is of \['Qwen3ForCausalLM'\]"):
        resolve_config(written("as published", tmp_path / "x"), info)
    other = save(tmp_path / "y", PLAIN, lstm_config(base_model_archs=["LlamaForCausalLM", "Qwen3ForCausalLM"]))
    assert resolve_config(other, info).method == "mlp_speculator"


def test_all_missing_and_foreign_tensors_are_named_in_one_error(tmp_path: Path) -> None:
    missing = ["cell_proj.1.weight", "state_ln.0.bias", "head.0.weight"]
    left = {name: tensor for name, tensor in PLAIN.items() if name not in missing}
    with pytest.raises(ConfigError) as caught:
        resolve_config(save(tmp_path / "a", left, lstm_config()))
    assert all(name in str(caught.value) for name in missing)
    with pytest.raises(ConfigError, match=r"belong to no speculator .*: emb\.0\.weight, proj\.2\.bias"):
        foreign = {"proj.2.bias": torch.ones(2), "emb.0.weight": torch.ones(2)}
        resolve_config(save(tmp_path / "b", {**PLAIN, **foreign}, lstm_config()))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cell_proj.0.weight", (INNER, WIDTH + 1)),
        ("output_proj.1.weight", (INNER, WIDTH)),
        ("forget_emb.0.weight", (VOCAB, INNER + 1)),
        ("state_ln.0.weight", (1,)),
    ],
)
def test_a_shape_that_does_not_fit_is_named(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name} is {list(shape)}")):
        resolve_config(save(tmp_path / "x", {**PLAIN, name: torch.zeros(shape)}, lstm_config()))


def test_quantized_weights_are_refused_by_explain_and_load_alike(tmp_path: Path) -> None:
    model = save(
        tmp_path / "x", {**PLAIN, "input_proj.1.weight": torch.ones(INNER, INNER).to(torch.int8)}, lstm_config()
    )
    with pytest.raises(ConfigError, match=r"input_proj\.1\.weight is int8; speculators are read in floating point"):
        resolve_config(model)
    with pytest.raises(ConfigError, match=r"input_proj\.1\.weight is int8; speculators are read in floating point"):
        built(model)


def test_the_gates_stand_in_their_order(tmp_path: Path) -> None:
    """Two gates exchanged give other drafts, so the order is not left to chance."""
    swapped = dict(PLAIN)
    for i in range(2):
        a, b = f"{GATES[0]}_proj.{i}.weight", f"{GATES[1]}_proj.{i}.weight"
        swapped[a], swapped[b] = PLAIN[b], PLAIN[a]
    other = Lstm(swapped, 3, scale_input=False, vocab_size=VOCAB)
    rows = driven("as published", tmp_path / "x").rows
    assert any(row.tokens != other.chain(row.state, row.text[-1], row.limit).tokens for row in rows)


@pytest.mark.parametrize("keys", [{}, {"n_candidates": 3, "top_k_tokens_per_head": [2, 2]}])
def test_preempted_and_switched_off_it_answers_as_plain_decoding_does(keys: dict[str, Any], tmp_path: Path) -> None:
    model, prompts = tiny_target("qwen3"), [[5, 6, 7], list(range(9, 33)), [40]]
    config = {
        "method": "mlp_speculator",
        "model": written("as published", tmp_path / "x"),
        "disable_by_batch_size": 2,
        **keys,
    }
    sampling = [
        SamplingParams(temperature=t, max_tokens=8 * (i + 1), ignore_eos=True, seed=i)
        for i, t in enumerate((0.0, 0.9, 0.0))
    ]
    texts, drafted = [], 0
    for speculative in (None, config):
        with LLM(hf_model=model, speculative_config=speculative, strict=True, kv_cache_tokens=64) as llm:
            results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling)
        texts.append([result.outputs[0].token_ids for result in results])
        drafted += sum(result.metrics.drafted for result in results)
    assert texts[0] == texts[1]
    assert drafted > 20


def test_only_the_tensors_that_draft_are_read(tmp_path: Path) -> None:
    proposer, _, target = built(written("every copy", tmp_path / "x"), num_speculative_tokens=1)
    assert len(proposer._plan._network._cell.projections) == 1
    assert target.dtype == TARGET.dtype
