"""Targets whose layers keep states: whatever is drafted and rejected, tokens and states are those of plain decoding."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from runs import VOCAB, ControllerPlugin, VaryingController, ids_of, params, prompts, run, stubs, target

from specdec_core.config.recurrent import states_of
from specdec_core.draft import BatchView
from specdec_core.errors import ConfigError, TargetError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_engine import LLM, SamplingParams
from specdec_nn.cache.states import StatePool, StateStep
from specdec_nn.hf.mixers import Mixer
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import probe
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Garbage, Perfect, Stub, rng_of_text, stub_plugin
from specdec_testing.targets import tiny_target
from specdec_testing.trees import GarbageTree

FIRST = ("lfm2", "qwen3_next")
OTHERS = ("qwen3_5", "jamba", "falcon_h1", "bamba", "granitemoehybrid", "zamba2")
families = pytest.mark.parametrize("family", [*FIRST, *(pytest.param(f, marks=pytest.mark.slow) for f in OTHERS)])
MODES = {"free-fp32": (torch.float32, None), "fixed-bf16": (torch.bfloat16, 5)}
modes = pytest.mark.parametrize("mode", MODES)


class Mixed(Perfect):
    """Drafts what the target is going to generate, with a wrong id at a place that the text decides, if at any."""

    def row(self, batch: BatchView, i: int) -> Sequence[int]:
        ids = list(super().row(batch, i))[: batch.max_draft[i]]
        at = int(rng_of_text(batch.request(i), 3).integers(0, len(ids) + 2))
        return [*ids[:at], (ids[at] + 1) % VOCAB, *ids[at + 1 :]] if at < len(ids) else ids


def both(count: int = 8, max_tokens: int = 20, **more: Any) -> list[SamplingParams]:
    """Greedy and sampled requests in turn."""
    greedy, sampled = (params(count, t, max_tokens, **more) for t in (0.0, 0.8))
    return [pair[i % 2] for i, pair in enumerate(zip(greedy, sampled, strict=True))]


def setting(family: str, mode: str) -> tuple[Any, dict[str, Any]]:
    dtype, width = MODES[mode]
    return target(family, dtype), {"decode_width": width, "prefill_chunk_size": 7 if width is None else None}


def all_stubs(texts: Any, plain: Any) -> Mapping[str, Stub]:
    return {**stubs(texts, plain), "mixed": Mixed.of_run(texts, plain)}


@families
@modes
def test_every_stub_gives_the_plain_tokens_with_k_from_one_to_six(family: str, mode: str) -> None:
    model, llm = setting(family, mode)
    lengths = (1, 60, 7, 33, 2, 90, 18, 17)
    texts, sampling = prompts(lengths), both()
    plain = run(model, texts, sampling, **llm)
    assert len({tuple(r.outputs[0].token_ids) for r in plain}) == len(texts)
    for k, (name, stub) in enumerate(all_stubs(texts, plain).items(), start=1):
        spec = run(model, texts, sampling, stub, k=k, **llm)
        assert ids_of(spec) == ids_of(plain), name
        if name == "mixed":
            accepted, drafted = (sum(getattr(r.metrics, f) for r in spec) for f in ("accepted", "drafted"))
            assert 0.2 < accepted / drafted < 0.8


@families
def test_k_that_varies_by_step_a_preemption_and_batches_of_all_sizes_change_nothing(family: str) -> None:
    model, texts, sampling = target(family), prompts((30, 41, 22, 35, 1, 9, 50, 12)), both(max_tokens=30)
    alone = [ids_of(run(model, [t], [s]))[0] for t, s in zip(texts, sampling, strict=True)]
    plain = run(model, texts, sampling)
    assert ids_of(plain) == alone
    for size in range(1, 9):
        plugins = {"varying": ControllerPlugin(VaryingController())}
        stub = Mixed.of_run(texts, plain)
        spec = run(
            model, texts[:size], sampling[:size], stub, k=6, config={"controller": "varying"}, plugins=plugins,
            kv_cache_tokens=96 if size < 4 else 128, max_num_seqs=5, prefill_chunk_size=7,
        )  # fmt: skip
        assert ids_of(spec) == alone[:size]
    assert any(reason == "preempted" for _, reason in stub.finished)


@families
def test_the_state_after_fifty_rounds_is_that_of_a_fresh_pass_over_the_committed_ids(family: str) -> None:
    model, texts = target(family), prompts((12, 30))
    sampling = params(2, 0.0, 260)
    plain = run(model, texts, sampling)
    stub, states, ids, committed = Mixed.of_run(texts, plain), [], [], []
    config, plugins = {"method": "stub", "num_speculative_tokens": 4}, {"stub": stub_plugin(stub)}
    with LLM(hf_model=model, speculative_config=config, plugins=plugins) as llm:
        engine = llm._engine
        engine.submit(texts, sampling)
        for _ in range(52):
            engine.step()
        assert stub.calls >= 50 and len(engine.scheduler.running) == 2
        for request in engine.scheduler.running:  # one more row for each, so that no accepted one is still logged
            request.max_draft = 0
        engine.step()
        for request in engine.scheduler.running:
            states.append(snapshots(engine.target.arena.states, request.segment.slot))
            ids.append(request.tokens[: request.run_len].tolist())
            committed.append(request.run_len)
    assert min(committed) > 100
    with LLM(hf_model=model) as llm:
        engine = llm._engine
        for state, text in zip(states, ids, strict=True):
            engine.submit([{"prompt_token_ids": text}], SamplingParams(max_tokens=2, temperature=0.0))
            engine.step()
            (request,) = engine.scheduler.running
            fresh = snapshots(engine.target.arena.states, request.segment.slot)
            assert state.keys() == fresh.keys() and state
            for key, wanted in fresh.items():
                assert torch.allclose(state[key], wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-5), key
            while engine.scheduler.running:
                engine.step()


def snapshots(pool: StatePool | None, slot: int) -> dict[tuple[int, int], torch.Tensor]:
    assert pool is not None
    return {key: layer.snapshot[slot].clone() for key, layer in pool._layers.items()}


@pytest.mark.parametrize("family", ["mamba", "lfm2", "qwen3_next"])
def test_wrong_drafts_leave_nothing_behind_in_a_recurrent_state_row_53(family: str) -> None:
    model, texts, sampling = tiny_target(family), prompts((9,)), params(1)
    llm = {"max_model_len": 128}
    assert ids_of(run(model, texts, sampling, Garbage(VOCAB), k=3, **llm)) == ids_of(run(model, texts, sampling, **llm))


def test_a_request_that_is_closed_between_draft_and_end_leaves_the_next_one_a_clean_state_row_52() -> None:
    model, texts, sampling = target("qwen3_next"), prompts((9, 20)), params(2)
    plain = run(model, texts, sampling)
    config = {"method": "stub", "num_speculative_tokens": 4}
    plugins = {"stub": stub_plugin(Mixed.of_run(texts, plain))}
    with LLM(hf_model=model, speculative_config=config, plugins=plugins, max_num_seqs=1) as llm:
        stream = llm.stream(texts[0], sampling[0])
        next(stream)
        next(stream)
        stream.close()
        states = llm._engine.target.arena.states
        assert states is not None and states.slots_in_use == 0
        assert ids_of(llm.generate(texts, sampling)) == ids_of(plain)


def test_a_step_without_drafts_after_accepted_ones_begins_at_the_accepted_state() -> None:
    class Every(Perfect):
        def row(self, batch: BatchView, i: int) -> Sequence[int]:
            return super().row(batch, i)[:3] if self.calls % 2 else ()

    model, texts, sampling = target("qwen3_next"), prompts((9, 20)), params(2, 0.0, 40)
    plain = run(model, texts, sampling)
    assert ids_of(run(model, texts, sampling, Every.of_run(texts, plain))) == ids_of(plain)


def test_states_of_a_bfloat16_model_are_kept_in_float32() -> None:
    with LLM(hf_model=target("qwen3_next", torch.bfloat16)) as llm:
        llm.generate(prompts((9,)), params(1))
        states = llm._engine.target.arena.states
        assert states is not None
        assert {layer.snapshot.dtype for layer in states._layers.values()} == {torch.float32}


@pytest.mark.parametrize("family", FIRST)
def test_a_head_gets_each_committed_row_once_and_with_the_states_of_a_pass_over_the_text(family: str) -> None:
    model, texts, sampling = target(family), prompts((9, 20)), params(2, 0.0, 24)
    plain = run(model, texts, sampling)
    head = RecordingProposer(inner=Mixed.of_run(texts, plain))
    assert ids_of(run(model, texts, sampling, head)) == ids_of(plain)
    model.set_attn_implementation("eager")
    for i, (text, result) in enumerate(zip(texts, plain, strict=True)):
        seen: dict[int, torch.Tensor] = {}
        for call in head.calls_seen:
            rows = call.rows
            assert rows is not None and rows.hidden is not None
            for r, position, hidden in zip(rows.request, rows.positions.tolist(), rows.hidden, strict=True):
                if call.request_ids[r] == f"{i}-0":
                    assert position not in seen
                    seen[position] = hidden
        ids = [*text["prompt_token_ids"], *result.outputs[0].token_ids]
        with torch.inference_mode():
            wanted = model.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        assert sorted(seen) == list(range(len(seen))) and len(seen) >= len(ids) - 6
        assert torch.allclose(torch.stack([seen[p] for p in range(len(seen))]), wanted[: len(seen)], atol=1e-4)


@pytest.mark.parametrize("family", FIRST)
def test_log_probabilities_of_prompt_and_output_are_those_of_plain_decoding(family: str) -> None:
    model, texts = target(family), prompts((9, 20))
    sampling = params(2, 0.0, 20, logprobs=2, prompt_logprobs=1)
    plain = run(model, texts, sampling, prefill_chunk_size=7)
    spec = run(model, texts, sampling, Mixed.of_run(texts, plain), prefill_chunk_size=7)
    for mine, other in zip(spec, plain, strict=True):
        assert mine.prompt_logprobs is not None and other.prompt_logprobs is not None
        mine_places = [*mine.prompt_logprobs[1:], *(mine.outputs[0].logprobs or ())]
        other_places = [*other.prompt_logprobs[1:], *(other.outputs[0].logprobs or ())]
        assert len(mine_places) == len(other_places) == len(mine.prompt_token_ids or ()) - 1 + 20
        for a, b in zip(mine_places, other_places, strict=True):
            assert a is not None and b is not None and a.keys() == b.keys()
            assert all(abs(a[token].logprob - b[token].logprob) < 1e-4 for token in a)


def test_a_method_that_drafts_trees_is_refused_with_what_to_do() -> None:
    config, plugins = {"method": "stub", "num_speculative_tokens": 4}, {"stub": stub_plugin(GarbageTree(VOCAB))}
    with pytest.raises(ConfigError, match=r"stub is set up to draft trees, .*set stub up for chains"):
        LLM(hf_model=target("lfm2"), speculative_config=config, plugins=plugins)


def test_a_mixer_that_nobody_knows_is_refused_with_layer_and_name() -> None:
    class Stranger(torch.nn.Module):
        """A mean over all earlier rows: whose they are, it does not ask."""

        layer_idx = 0

        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            return hidden_states.cumsum(1) / torch.arange(1, hidden_states.shape[1] + 1)[:, None]

    model = tiny_target("lfm2")
    model.model.layers[0].conv = Stranger()
    with pytest.raises(TargetError, match=r"missing: layer 0 \(Stranger\)"):
        LLM(hf_model=model)


@pytest.mark.parametrize("family", [*FIRST, *OTHERS, "mamba"])
def test_the_trial_refuses_states_that_are_not_taken_back(family: str, monkeypatch: Any) -> None:
    honest = StatePool.step

    def step(self: StatePool, starts: Any, rows: Any, slots: Any, context: Any, certain: Any) -> StateStep:
        try:
            return honest(self, starts, rows, slots, context, [2**31] * len(slots))  # type: ignore[arg-type]
        except ValueError:
            self._base = list(self._base)
            for slot, begin in zip(slots, context, strict=True):
                self._base[slot] = begin
            return honest(self, starts, rows, slots, context, [2**31] * len(slots))  # type: ignore[arg-type]

    monkeypatch.setattr(StatePool, "step", step)
    with pytest.raises(TargetError, match="in layer 0 is the first that differs"):
        LLM(hf_model=tiny_target(family), max_model_len=64)


def test_a_mixer_outside_of_a_flat_batch_is_as_it_was() -> None:
    model = target("qwen3_next")
    ids = torch.tensor([prompts((20,))[0]["prompt_token_ids"]])
    with torch.inference_mode():
        before = model(ids).logits
        with LLM(hf_model=model) as llm:
            llm.generate(prompts((9,)), params(1))
            assert torch.equal(model(ids).logits, before)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert "Mixer" not in {type(value).__name__ for value in vars(type(model.model.layers[0])).values()}
    assert Mixer.__module__ not in str(
        type(model.model.layers[0].linear_attn).forward.__globals__.get("causal_conv1d_fn")
    )


def test_positions_stay_what_was_set_and_states_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    model = target("qwen3_next")
    with LLM(hf_model=model, kv_cache_tokens=640, max_num_seqs=3) as llm:
        assert llm._engine.target.arena.num_tokens == 640
        llm.generate(prompts((9, 20)), params(2))
        flat, held = llm._engine.target.flat, llm.get_state().kv_bytes
        assert held == 640 * 128 + 3 * (flat.state_bytes + flat.state_row_bytes)
    text = caplog.text
    assert (
        f"640 positions of 128 bytes and recurrent states of 3 requests, {flat.state_bytes + flat.state_row_bytes:,}"
        in text
    )
    assert "keep recurrent states, so no prefix is reused" in text


@pytest.mark.parametrize("family", [*FIRST, *OTHERS, "mamba", "olmo_hybrid"])
def test_the_sizes_that_explain_prints_are_those_of_the_loaded_model(family: str) -> None:
    model = tiny_target(family)
    flat = FlatModel(model, model.config.num_hidden_layers, VOCAB, Registry(Catalog.discover()).kernels)
    probe(flat)
    states = states_of(model.config.to_dict())
    assert states is not None and (states.each, states.each_row) == (flat.state_bytes, flat.state_row_bytes)


def test_no_prefix_is_taken_over_from_another_request() -> None:
    model, text = target("lfm2"), prompts((100,))
    with LLM(hf_model=model) as llm:
        results = [llm.generate(text, params(1))[0] for _ in range(2)]
        assert [result.num_cached_tokens for result in results] == [0, 0]
    assert ids_of(results[:1]) == ids_of(results[1:])


def test_prefix_reuse_that_is_asked_for_is_refused_by_name() -> None:
    said = "enable_prefix_caching=True: layers of Lfm2ForCausalLM keep recurrent states"
    with pytest.raises(TargetError, match=said):
        LLM(hf_model=target("lfm2"), enable_prefix_caching=True)


def test_free_and_held_slots_are_kept_count_of_under_preemption() -> None:
    model, texts, sampling = target("lfm2"), prompts((30, 41, 22, 35)), params(4, 0.0, 40)
    with LLM(hf_model=model, kv_cache_tokens=128) as llm:
        engine = llm._engine
        engine.submit(texts, sampling)
        for _ in itertools.count():
            engine.step()
            running, waiting = engine.scheduler.running, list(engine.scheduler.waiting)
            engine.target.arena.check_integrity([r.segment for r in (*running, *waiting)])
            if not running:
                break
        assert engine.scheduler.preemptions > 0
    assert np.isfinite(llm.get_metrics().emitted)
