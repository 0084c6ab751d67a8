"""Every draft is the oracle's, over whole lives of requests and in the engine, and the text is plain decoding's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kangaroo_adapters import EXIT, LAYOUTS, TARGET
from kangaroo_oracle import Checked, Oracle, Row

from specdec_engine import LLM, SamplingParams
from specdec_testing.building import build
from specdec_testing.contract import script_batch
from specdec_testing.driving import Driver
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import assert_same_output
from specdec_testing.subject import Subject


def keys(folder: Path, name: str = "published", **more: Any) -> dict[str, Any]:
    model = LAYOUTS[name].save(folder / "adapter")
    return {"method": "kangaroo", "model": model, "exit_layer": EXIT, "draft_confidence_threshold": None, **more}


def oracle(name: str = "published", exit_layer: int = EXIT) -> Oracle:
    layout = LAYOUTS[name]
    return Oracle(TARGET, exit_layer, layout.parts, layout.settings or {})


def prompts(*lengths: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(sum(lengths))
    return [{"prompt_token_ids": rng.integers(3, 128, n).tolist()} for n in lengths]


def params(count: int, max_tokens: int = 30, **more: Any) -> list[SamplingParams]:
    given = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **more}
    return [SamplingParams(seed=i, **given) for i in range(count)]


def plain(texts: Any, sampling: Any, **llm: Any) -> Any:
    with LLM(hf_model=TARGET, strict=True, **llm) as engine:
        return engine.generate(texts, sampling, use_tqdm=False)


@pytest.mark.parametrize(
    ("name", "exit_layer", "threshold"),
    [("published", 2, None), ("published", 1, 0.5), ("grouped", 3, 0.5), ("two layers", 1, None)],
)
def test_drafts_over_chunks_rejections_pauses_lost_rows_and_preemption(name, exit_layer, threshold, tmp_path):
    target, options = FakeTarget(TARGET), keys(tmp_path, name, exit_layer=exit_layer)
    options["draft_confidence_threshold"] = threshold
    method = options.pop("method")
    built = build(Subject(method, options, None), target.info, 4)
    checked = Checked(built.proposer(target), oracle(name, exit_layer), threshold)
    driver = Driver(checked, built.resolved.traits, target)
    accept, off = ((0, 4, 1), (4,), (2, 0, 3)), (frozenset(), frozenset((1, 2)))
    changes = [
        {"accept": accept[i % 3], "off": off[i % 2], "preempt": (None, None, 3)[i % 3], "skip": 3 * (i % 4 == 1)}
        for i in range(8)
    ]
    driver.run([replace(s, **more) for s, more in zip(script_batch(8, 0, 128, 4), changes, strict=True)])
    assert driver.problems == []
    assert checked.compared > 30 and checked.gaps > 3 and checked.oracle.margin > 1e-4
    assert (checked.ended > 3) == (threshold is not None)


@pytest.mark.parametrize("fused", [True, False])
def test_drafts_in_the_engine_with_chunks_pauses_preemption_and_a_stop(fused, tmp_path):
    """The rows that the adapter is given are the target's own, and drafts are stopped by their probability."""
    texts, sampling = prompts(40, 40, 44, 5), params(4, 40)
    kwargs = {"kv_cache_tokens": 224, "prefill_chunk_size": 16, "fused": fused}
    config = keys(tmp_path, disable_by_batch_size=3, draft_confidence_threshold=0.5, num_speculative_tokens=5)
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, **kwargs) as llm:
        runner = llm._engine.runner
        checked = runner._proposer = Checked(runner._proposer, oracle(), 0.5, of_target=True)
        out = llm.generate(texts, sampling, use_tqdm=False)
        assert llm._engine.scheduler.preemptions
        assert runner.memory_bytes() > 0
    assert checked.compared > 60 and checked.ended > 10 and checked.oracle.margin > 1e-4
    assert_same_output(plain(texts, sampling), out)


def test_a_right_adapter_has_every_draft_accepted(tmp_path):
    """Layers behind the exit add nothing, and so does the adapter: its norm is then the target's."""
    import copy

    model = copy.deepcopy(TARGET)
    with torch.no_grad():
        for layer in model.model.layers[EXIT:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    layout = LAYOUTS["published"]
    own = {
        "norm.weight": model.model.norm.weight.detach(),
        "layers.0.self_attn.o_proj.weight": torch.zeros_like(layout.tensors["layers.0.self_attn.o_proj.weight"]),
    }
    settings = {**(layout.settings or {}), "rms_norm_eps": model.config.rms_norm_eps}
    folder = replace(layout, tensors={**layout.tensors, **own}, settings=settings).save(tmp_path / "adapter")
    # The method is detected.
    config = {"model": folder, "exit_layer": EXIT, "draft_confidence_threshold": 0.0, "num_speculative_tokens": 4}
    texts, sampling = prompts(70, 40, 40), params(3, 60)
    with LLM(hf_model=model, speculative_config=config, kv_cache_tokens=224, strict=True) as llm:
        out = llm.generate(texts, sampling, use_tqdm=False)
        metrics = llm.get_metrics()
        assert llm._engine.scheduler.preemptions
    assert metrics.accepted == metrics.drafted > 100
    with LLM(hf_model=model, strict=True) as llm:
        assert_same_output(llm.generate(texts, sampling, use_tqdm=False), out)


@pytest.mark.parametrize("more", [{}, {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}])
def test_small_budgets_mixed_batches_and_fixed_widths_change_no_text(more, tmp_path):
    texts = prompts(30, 41, 22, 1)
    sampling = [SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=45, ignore_eos=True) for i in range(4)]
    config = keys(tmp_path, num_speculative_tokens=4, **more)
    for width in (None, 5):
        expected = plain(texts, sampling, decode_width=width)
        for some, llm in itertools.product(({}, {"max_step_tokens": 7}), ({}, {"kv_cache_tokens": 144})):
            with LLM(
                hf_model=TARGET, speculative_config={**config, **some}, strict=True, decode_width=width, **llm
            ) as engine:
                out = engine.generate(texts, sampling, use_tqdm=False)
                assert engine.get_metrics().drafted > 30
            assert_same_output(expected, out, f"{width}, {some}, {llm}")


def test_it_drafts_as_a_part_of_a_combination(tmp_path):
    texts, sampling = prompts(30, 12), params(2)
    lookup = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    config = {"method": "combine", "methods": [lookup, keys(tmp_path)], "num_speculative_tokens": 4}
    with LLM(hf_model=TARGET, speculative_config=config, strict=True) as llm:
        out = llm.generate(texts, sampling, use_tqdm=False)
        assert llm.get_metrics().drafted > 20
    assert_same_output(plain(texts, sampling), out)


def test_the_formulas_with_numbers_worked_out_by_hand():
    """Width 2, one head, two rows at positions 0 and 1: the second sees both, after the first was turned by nothing."""
    eye = torch.eye(2)
    names = [f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"]
    tensors = {
        **dict.fromkeys(names, eye),
        "layers.0.input_layernorm.weight": torch.ones(2),
        "norm.weight": torch.ones(2),
    }
    made = Oracle.__new__(Oracle)
    made.config = {"num_attention_heads": 1, "num_key_value_heads": 1, "rms_norm_eps": 0.0}
    made.weights = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    made.head = np.eye(2)
    # y = sqrt 2 [1, 0] and sqrt 2 [0, 1]; with s = sin 1 the scores of row 1 are -2 s / sqrt 2 and 2 / sqrt 2
    rows = [Row(0, np.array([3.0, 0.0])), Row(1, np.array([0.0, 5.0]))]
    first = 1 / (1 + np.exp(np.sqrt(2) * (1 + np.sin(1))))
    x = np.array([np.sqrt(2) * first, 5 + np.sqrt(2) * (1 - first)])
    np.testing.assert_allclose(made.logits(rows), x / np.sqrt((x * x).mean()), rtol=1e-12)
