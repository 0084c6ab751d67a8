"""Through the engine: heads get the states that they name, and draft what the oracle drafts, in several families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_layouts import EVERY, Layout
from dflash_replay import agreement, watched
from second_layouts import SECONDS
from torch import Tensor

from specdec_engine import LLM, SamplingParams
from specdec_testing.recording import RecordingProposer
from specdec_testing.targets import tiny_target

HALF = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.7, 0.6, 0.5]}
LENGTHS = (5, 24, 1)


def run(model: Any, layout: Layout, folder: Path, k: int = 4, **options: Any) -> tuple[RecordingProposer, list[Any]]:
    """Generate for prompts of several lengths in chunks, two at a time, and return what the proposer saw."""
    config = {"method": layout.method, "model": layout.save(folder), "num_speculative_tokens": k, **options}
    rng = np.random.default_rng(3)
    prompts = [{"prompt_token_ids": rng.integers(3, 128, length).tolist()} for length in LENGTHS]
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    engine = {"strict": True, "prefill_chunk_size": 9, "max_num_seqs": 2}
    with LLM(hf_model=model, speculative_config=config, **engine) as llm:
        assert llm._engine.runner is not None
        assert llm.resolved_config is not None
        recorder = watched(llm._engine.runner._proposer, llm.resolved_config.traits)
        llm._engine.runner._proposer = recorder
        results = llm.generate(prompts, sampling)
    return recorder, results


def stock_states(model: Any, ids: list[int]) -> list[Tensor]:
    """Return R_0 .. R_(L - 1) and the final state, [positions, H] each, by transformers' own forward."""
    model.set_attn_implementation("eager")  # the one that every family spells out
    with torch.inference_mode():
        out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return [state[0] for state in out.hidden_states]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("name", ["dflash: mixed types", "dflash: final state", "dspark: small vocabulary"])
def test_drafts_come_from_the_states_that_the_checkpoint_names(name: str, family: str, tmp_path: Path) -> None:
    layers = {"gpt2": {"n_layer": 8}, "gemma2": {"num_hidden_layers": 8, "layer_types": ["full_attention"] * 8}}
    model, layout = tiny_target(family, **layers.get(family, {"num_hidden_layers": 8})), EVERY[name]
    recorder, results = run(model, layout, tmp_path / "head", **HALF)
    found = agreement(recorder, layout.oracle(model), 4)
    assert len(found.drafted) == len(LENGTHS)
    assert min(found.drafted.values()) > 12
    assert found.margin > 1e-4
    assert sum(result.metrics.accepted for result in results) > 15, "blocks of accepted drafts were looked at"
    assert_states(model, layout.aux, recorder)


def assert_states(model: Any, aux: tuple[int, ...], recorder: RecordingProposer) -> None:
    """Hold every row against a forward of the whole text as it was known in the end."""
    texts = {name: ids for call in recorder.calls_seen for name, ids in zip(call.request_ids, call.tokens, strict=True)}
    states = {name: stock_states(model, ids) for name, ids in texts.items()}
    for call in recorder.calls_seen:
        rows = call.rows
        assert rows is not None
        for i, name in enumerate(call.request_ids):
            mine = np.flatnonzero(rows.request == i)
            at = rows.positions[mine].tolist()
            given = [rows.hidden] if rows.aux is None else list(rows.aux.unbind(1))
            for state, k in zip(given, aux or (-1,), strict=True):
                assert state is not None
                torch.testing.assert_close(state[mine], states[name][k][at], atol=2e-4, rtol=2e-4)


def test_the_numba_kernels_draft_what_the_oracle_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    model = tiny_target("llama", num_hidden_layers=8)
    for name in ("dflash: sinks and windows", "dspark: from the anchor"):
        recorder, _ = run(model, EVERY[name], tmp_path / name, **HALF)
        assert agreement(recorder, EVERY[name].oracle(model), 4).margin > 1e-4


def test_drafting_goes_on_to_the_end_of_the_context(tmp_path: Path) -> None:
    """The rows of the last blocks stand past the positions that a text can have."""
    model = tiny_target("llama", num_hidden_layers=8)
    layout = EVERY["dflash: standard"]
    config = {"method": "dflash", "model": layout.save(tmp_path / "x"), "num_speculative_tokens": 7}
    sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    with LLM(hf_model=model, speculative_config=config, strict=True, max_model_len=40) as llm:
        (result,) = llm.generate([{"prompt_token_ids": list(range(5, 30))}], sampling)
    assert len(result.outputs[0].token_ids) == 15
    assert result.metrics.drafted > 40


def test_a_prompt_in_one_piece_and_in_chunks_gives_the_same_drafts(tmp_path: Path) -> None:
    model, layout = tiny_target("llama", num_hidden_layers=8), EVERY["dspark: small vocabulary"]
    config = {"method": "dspark", "model": layout.save(tmp_path / "x"), "num_speculative_tokens": 4}
    seen = []
    for chunk in (64, 7):
        with LLM(hf_model=model, speculative_config=config, strict=True, prefill_chunk_size=chunk) as llm:
            assert llm._engine.runner is not None
            assert llm.resolved_config is not None
            recorder = watched(llm._engine.runner._proposer, llm.resolved_config.traits)
            llm._engine.runner._proposer = recorder
            llm.generate([{"prompt_token_ids": list(range(3, 60))}], SamplingParams(temperature=0.0, max_tokens=8))
        drafts = recorder.inner.drafts  # type: ignore[attr-defined]
        seen.append([draft.tokens.tolist() for draft in drafts if len(draft.tokens)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["DFlash2", "LiLiCorr, narrower, convolutions", "Domino, shifted"])
def test_preempted_and_switched_off_heads_that_walk_answer_as_plain_decoding_does(name: str, tmp_path: Path) -> None:
    """Greedy and sampled requests side by side; three are too many to draft for, and there is room for two of them."""
    model = tiny_target("llama", num_hidden_layers=8)
    keys = {"num_speculative_tokens": 4, "disable_by_batch_size": 2}
    config = {"method": "dflash", "model": SECONDS[name].save(tmp_path / "head"), **keys}
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 6, 7], list(range(9, 33)), [40])]
    sampling = [
        SamplingParams(temperature=t, max_tokens=8 * (i + 1), ignore_eos=True, seed=i)
        for i, t in enumerate((0.0, 0.9, 0.0))
    ]
    texts, drafted = [], 0
    for speculative in (None, config):
        with LLM(hf_model=model, speculative_config=speculative, strict=True, kv_cache_tokens=64) as llm:
            results = llm.generate(prompts, sampling)
        texts.append([result.outputs[0].token_ids for result in results])
        drafted += sum(result.metrics.drafted for result in results)
    assert texts[0] == texts[1]
    assert drafted > 20
