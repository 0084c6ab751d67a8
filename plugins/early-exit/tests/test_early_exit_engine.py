"""Early exit in the engine, which shares the target's pages: drafts, texts, and what is computed how often."""

from __future__ import annotations

import itertools
import logging
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from early_exit_oracle import Checked, Oracle

from specdec_engine import LLM, SamplingParams
from specdec_nn.hf.model import FlatModel
from specdec_plugin_early_exit import usefulness
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.identity import assert_same_output
from specdec_testing.table import joint, random_table, table_target
from specdec_testing.targets import tiny_target

LAYERS, EXIT = 4, 2


def target(family="llama", **more):
    return tiny_target(family, num_hidden_layers=LAYERS, max_position_embeddings=512, **more)


def left_alone_behind(model, exit_layer):
    """Let the layers from `exit_layer` on add nothing to the stream, so that what leaves early is what leaves late."""
    with torch.no_grad():
        for layer in model.model.layers[exit_layer:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def prompts(*lengths):
    rng = np.random.default_rng(sum(lengths))
    return [{"prompt_token_ids": rng.integers(3, 128, n).tolist()} for n in lengths]


def params(count, max_tokens=30, **more):
    return [SamplingParams(**{"temperature": 0.0, "seed": i, "max_tokens": max_tokens, "ignore_eos": True, **more})
            for i in range(count)]  # fmt: skip


def config(k=4, exit_layer=EXIT, **more):
    return {"method": "early_exit", "exit_layer": exit_layer, "num_speculative_tokens": k, **more}


def run(model, texts, sampling, speculative=None, **llm):
    with LLM(hf_model=model, speculative_config=speculative, strict=True, **llm) as engine:
        return engine.generate(texts, sampling, use_tqdm=False), engine.get_metrics() if speculative else None


@pytest.mark.parametrize("fused", [True, False])
def test_every_draft_is_what_the_formulas_say(fused):
    """With chunked prompts, rejections, a pool of pages that is too small, and speculation off for large batches."""
    model = target()
    kwargs = {"kv_cache_tokens": 224, "prefill_chunk_size": 16, "fused": fused}
    speculative = config(disable_by_batch_size=3)
    with LLM(hf_model=model, speculative_config=speculative, strict=True, **kwargs) as llm:
        runner = llm._engine.runner
        checked = runner._proposer = Checked(runner._proposer, Oracle(model, EXIT))
        out = llm.generate(prompts(40, 40, 44, 5), params(4, 50), use_tqdm=False)
        preemptions = llm._engine.scheduler.preemptions
    assert preemptions and checked.compared > 100 and checked.oracle.margin > 1e-4
    assert_same_output(run(model, prompts(40, 40, 44, 5), params(4, 50))[0], out)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_layers_that_add_nothing_make_every_draft_come_true(family, k):
    model = target("llama") if family == "llama" else tiny_target(family)
    exit_layer = EXIT if family == "llama" else 1
    if family == "gemma2":  # norms behind attention and MLP: their outputs are zeroed by the weights of the norms
        with torch.no_grad():
            for layer in model.model.layers[1:]:
                layer.post_attention_layernorm.weight.fill_(-1.0)
                layer.post_feedforward_layernorm.weight.fill_(-1.0)
    else:
        left_alone_behind(model, exit_layer)
    texts, sampling = prompts(1, 40, 9), params(3)
    out, metrics = run(model, texts, sampling, config(k, exit_layer))
    assert_same_output(run(model, texts, sampling)[0], out)
    assert metrics.accepted == metrics.drafted > 0
    for result in out:
        assert result.metrics.steps == -(-29 // (k + 1))


def test_all_of_it_is_accepted_through_preemption_prefixes_and_pauses():
    """Nothing has to be caught up: what the target has is all that the first layers read."""
    model = left_alone_behind(target(), EXIT)
    texts = prompts(70, 40, 40)
    texts += [{"prompt_token_ids": [*texts[0]["prompt_token_ids"][:64], 5, 6, 7]}]
    sampling = params(4, 60)
    with LLM(hf_model=model, speculative_config=config(), kv_cache_tokens=288, strict=True) as llm:
        out = llm.generate(texts, sampling, use_tqdm=False)
        assert llm._engine.scheduler.preemptions
        again = llm.generate(texts[:1], sampling[:1], use_tqdm=False)
        assert llm._engine.scheduler.prefix.hits
        metrics = llm.get_metrics()
        assert llm._engine.runner.memory_bytes() == 0
    assert metrics.accepted == metrics.drafted > 100
    assert_same_output(out[:1], again)
    assert_same_output(run(model, texts, sampling)[0], out)


@contextmanager
def counted():
    """Count the rows of every forward, by the number of layers that it runs."""
    rows, inner = {}, FlatModel.run

    def spy(self, ids, *args):
        rows[self.num_layers] = rows.get(self.num_layers, 0) + len(ids)
        return inner(self, ids, *args)

    FlatModel.run = spy
    try:
        yield rows
    finally:
        FlatModel.run = inner


def test_the_first_layers_run_a_row_for_each_draft_and_none_for_the_text():
    model = target()
    with LLM(hf_model=model, speculative_config=config(), strict=True) as llm, counted() as rows:
        llm.generate(prompts(60, 33), params(2), use_tqdm=False)
        metrics = llm.get_metrics()
    assert rows[EXIT] == metrics.proposed > 0


def test_keys_and_values_of_a_run_with_drafts_are_those_of_one_without():
    """Of all layers and every committed position, after drafts that were rejected."""
    model, text = target(), prompts(40)
    stored = []
    for speculative in (None, config()):
        with LLM(hf_model=model, speculative_config=speculative, strict=True) as llm:
            llm.generate(text, params(1, 41), use_tqdm=False)
            arena = llm._engine.target.arena
            pages = [arena._published[key] for key in arena._published]
            stored.append([(k[pages].clone(), v[pages].clone()) for k, v in arena._layers.values()])
    assert len(stored[0]) == len(stored[1]) == LAYERS and len(stored[0][0][0]) == 2
    for (k0, v0), (k1, v1) in zip(*stored, strict=True):
        torch.testing.assert_close(k1, k0, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(v1, v0, rtol=1e-4, atol=1e-4)


def test_what_drafts_leave_in_the_pages_changes_no_text(monkeypatch):
    """Were the drafter's rows nonsense, the text would still be the target's, bit for bit."""
    from specdec_engine.decoding.first_layers import SharedLayers

    inner = SharedLayers.run

    def spoiled(self, requests, depth, ids):
        logits = inner(self, requests, depth, ids)
        arena = self._arena()
        for request in requests:
            own = self._lent.own(request)
            slot = int(arena.slots(own.segment, own.run_len + depth, 1)[0])
            for k, v in arena._layers.values():
                k[slot // arena.page_size, :, slot % arena.page_size] = 1e4
                v[slot // arena.page_size, :, slot % arena.page_size] = 1e4
        return logits

    model = target(dtype=torch.bfloat16)
    texts, sampling = prompts(30, 41, 22), params(3) + params(3, temperature=0.8)
    plain, _ = run(model, texts * 2, sampling, decode_width=8)
    monkeypatch.setattr(SharedLayers, "run", spoiled)
    out, metrics = run(model, texts * 2, sampling, config(), decode_width=8)
    assert_same_output(plain, out)
    assert metrics.drafted > 50


def test_small_budgets_mixed_batches_and_fixed_widths_change_no_text():
    model = target()
    texts = prompts(30, 41, 22, 1)
    sampling = [SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=45, ignore_eos=True) for i in range(4)]
    for width in (None, 5):
        plain, _ = run(model, texts, sampling, decode_width=width)
        for more, llm in itertools.product(({}, {"max_step_tokens": 7}), ({}, {"kv_cache_tokens": 144})):
            out, _ = run(model, texts, sampling, config(**more), decode_width=width, **llm)
            assert_same_output(plain, out, f"{width}, {more}, {llm}")


def test_it_drafts_as_a_part_of_a_combination():
    model = left_alone_behind(target(), EXIT)
    parts = [
        {"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 4},
        {"method": "early_exit", "exit_layer": EXIT},
    ]
    texts, sampling = prompts(30, 12), params(2)
    for rule in ("first", "merge"):
        speculative = {"method": "combine", "methods": parts, "rule": rule, "num_speculative_tokens": 4}
        out, metrics = run(model, texts, sampling, speculative)
        assert_same_output(run(model, texts, sampling)[0], out)
        assert metrics.accepted > 40


def test_an_unsure_id_ends_a_draft():
    model, texts = target(), prompts(30, 12)
    drafted = []
    for threshold in (0.0, 0.2, 1.0):
        speculative = config(draft_confidence_threshold=threshold)
        drafted.append(run(model, texts, params(2), speculative)[1])
    long, middle, short = drafted
    assert long.drafted / long.drafts > middle.drafted / middle.drafts > short.drafted / short.drafts
    assert short.drafted == short.drafts


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["standard", "block", "coupled"])
def test_sampled_texts_follow_the_targets_distribution(verifier):
    """A target whose second layer changes what the first one would say, so that drafts are drawn from another one."""
    count, size, length = 3000, 4, 3
    table = random_table(size, seed=1, concentration=0.8)
    model = table_target(table, num_layers=2, max_position_embeddings=64)
    speculative = {
        "method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic", "rejection_sample_method": verifier,
    }  # fmt: skip
    sampling = [SamplingParams(temperature=1.0, seed=i, max_tokens=length + 3, ignore_eos=True) for i in range(count)]
    with LLM(hf_model=model, speculative_config=speculative, max_num_seqs=count, strict=True) as llm:
        results = llm.generate([{"prompt_token_ids": [1, 2, 0]}] * count, sampling, use_tqdm=False)
    assert sum(result.metrics.accepted for result in results) > count / 4
    ids = np.array([result.outputs[0].token_ids[:length] for result in results])
    codes = ids @ (size ** np.arange(length)[::-1])
    assert_follows(np.bincount(codes, minlength=size**length), joint(table, 0, length))


def test_a_target_that_gains_nothing_is_told_of_once(caplog, monkeypatch):
    monkeypatch.setattr(usefulness, "DRAFTS", 60)
    with caplog.at_level(logging.WARNING, logger="specdec_plugin_early_exit"):
        run(left_alone_behind(target(), EXIT), prompts(30), params(1), config())
        assert not caplog.records
        run(target(), prompts(30, 20), params(2), config(exit_layer=1))
    (record,) = caplog.records
    assert "layers up to 1" in record.getMessage() and "another method" in record.getMessage()
