"""Rows of docs/bug-reports.md about draft models, each as it was reported; that page names more tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_model_folders import asked, draft, drafter, keys, saved
from draft_model_oracle import Ids, Oracle
from draft_model_tokenizers import numbered
from safetensors.torch import load_file, save_file

from specdec_core.errors import ConfigError, PluginError, TargetError
from specdec_engine import LLM, SamplingParams
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.goodness_of_fit import assert_follows, count
from specdec_testing.identity import assert_same_output, sample_prompts
from specdec_testing.table import random_table, table_target
from specdec_testing.targets import tiny_target

WORDS = [f"w{i}" for i in range(128)]


def params(**more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **more})


def compared(config: dict[str, Any], prompts: Any = None, sampling: Any = None, **llm: Any) -> tuple[list[Any], Any]:
    """Generate with and without speculation: the same ids and ends. Returns results and metrics."""
    arguments: dict[str, Any] = {"hf_model": tiny_target("llama"), **llm}
    given = sample_prompts(count=3) if prompts is None else prompts
    texts = [{"prompt_token_ids": ids} for ids in given]
    with LLM(**arguments) as engine:
        plain = engine.generate(texts, sampling or params())
    with LLM(**arguments, speculative_config=config, strict=True) as engine:
        results = engine.generate(texts, sampling or params())
        metrics = engine.get_metrics()
    assert_same_output(plain, results)
    return results, metrics


def test_greedy_text_is_the_plain_one_row_11(tmp_path: Path) -> None:
    results, metrics = compared(keys(draft(tmp_path / "d0", num_hidden_layers=1), 3))
    assert metrics.drafted > 100
    assert all(len(result.outputs[0].token_ids) == 40 for result in results)


def test_a_drafter_with_a_short_context_stops_there_and_decoding_goes_on_rows_40_and_41(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = draft(tmp_path / "short", max_position_embeddings=32)
    (long, short), metrics = compared(keys(model), [list(range(3, 43)), list(range(3, 13))], params(max_tokens=30))
    assert (long.metrics.drafted, long.metrics.empty, long.metrics.steps) == (0, 0, 29), (
        "skipped steps have no drafts, and count none"
    )
    assert short.metrics.drafted > 20
    assert metrics.failures == 0
    assert sum("has reached position 32" in record.message for record in caplog.records) == 1


def test_a_short_context_of_learned_positions_is_never_read_beyond_row_40(tmp_path: Path) -> None:
    """A table of positions that ends at 32 would fail loudly at the first id behind it."""
    model = draft(tmp_path / "gpt2", "gpt2", n_positions=32)
    _, metrics = compared(keys(model), [list(range(3, 33)), list(range(3, 60)), [5]], params(max_tokens=40))
    assert metrics.failures == 0
    assert metrics.drafted > 20


def test_the_drafters_max_model_len_ends_drafts_row_43(tmp_path: Path) -> None:
    model = draft(tmp_path / "d")
    (result,), _ = compared(keys(model, max_model_len=30), [list(range(3, 23))], params(max_tokens=30))
    assert 0 < result.metrics.drafted < 40
    assert result.metrics.steps - result.metrics.drafts > 15


def test_a_drafter_with_another_tokenizer_keeps_positions_of_its_own_row_50(tmp_path: Path) -> None:
    own = numbered([*reversed(WORDS), "unk"], unk="unk")
    model = draft(tmp_path / "d", tokenizer=own, vocab_size=132)
    for method in ("token", "text"):
        config = keys(model, use_heterogeneous_vocab=True, heterogeneous_vocab_method=method)
        _, metrics = compared(config, tokenizer=numbered(WORDS))
        assert metrics.drafted > 0


def test_an_aborted_request_leaves_nothing_behind_row_52(tmp_path: Path) -> None:
    config = keys(draft(tmp_path / "d"))
    target = tiny_target("llama")
    prompt = [{"prompt_token_ids": list(range(3, 30))}]
    with LLM(hf_model=target) as plain, LLM(hf_model=target, speculative_config=config, strict=True) as engine:
        stream = engine.stream(prompt, params())
        next(stream)
        stream.close()
        assert engine._engine.runner._proposer._runner._cache.arena.pages_in_use == 0  # type: ignore[union-attr]
        assert_same_output(plain.generate(prompt, params()), engine.generate(prompt, params()))


def test_a_smaller_table_has_no_probability_for_the_ids_that_it_lacks_row_58(tmp_path: Path) -> None:
    """Tables of 10 and 8 rows for 7 words: the distribution of the text is the target's, its padding included."""
    distribution, other = random_table(10, seed=1, concentration=0.8), random_table(8, seed=2, concentration=0.8)
    words = numbered(WORDS[:7])
    model = saved(tmp_path / "d", table_target(other), words)
    config = keys(model, 2, draft_sample_method="probabilistic")
    sampling = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True, n=2500, seed=3)
    with LLM(
        hf_model=table_target(distribution), tokenizer=words, speculative_config=config, strict=True, max_num_seqs=256
    ) as engine:
        (result,) = engine.generate([{"prompt_token_ids": [2]}], sampling)
        assert engine.get_metrics().accepted > 0
    ids = np.array([sample.token_ids for sample in result.outputs])
    assert_follows(count(ids[:, 0] * 10 + ids[:, 1], 100), (distribution[2][:, None] * distribution).ravel())
    assert_follows(
        count(ids[:, 1] * 10 + ids[:, 2], 100), ((distribution[2] @ distribution)[:, None] * distribution).ravel()
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"draft_sample_method": "probabilistic"}, {"use_heterogeneous_vocab": True}])
def test_padding_rows_that_shout_are_never_proposed_row_59(options: dict[str, Any], tmp_path: Path) -> None:
    """The head has 128 rows and the tokenizer 120 words; row 125 is by far the likeliest everywhere."""
    model = tiny_target("llama", seed=7)
    with torch.no_grad():
        model.lm_head.weight[125] = 50.0 * model.lm_head.weight.mean(0) + 20.0
    words = numbered(WORDS[:120], unk="w0")
    folder = saved(tmp_path / "d", model, words)
    assert {Oracle(folder, Ids.same(128)).drafts([i, 9], 1)[0] for i in range(3, 90)} & {125}
    _, metrics = compared(keys(folder, **options), sampling=params(max_tokens=16), tokenizer=words)
    assert metrics.drafted > 40
    assert metrics.failures == 0


def test_a_drafter_with_other_contents_of_the_same_size_is_refused_row_60(tmp_path: Path) -> None:
    swapped = [*WORDS[:10], "w11", "w10", *WORDS[12:]]
    model = draft(tmp_path / "d", tokenizer=numbered(swapped, unk="w0"))
    target = FakeTarget(tiny_target("llama"), tokenizer=numbered(WORDS))
    with pytest.raises((ConfigError, PluginError), match="id 10 is 'w10' in the target and 'w11' in the drafter"):
        drafter(model, target)
    drafter(model, target, use_heterogeneous_vocab=True)


def test_the_map_is_made_of_the_tokenizers_in_use_row_64(tmp_path: Path) -> None:
    """The target's folder has one tokenizer, and the engine is given another: the latter's ids count."""
    target = saved(tmp_path / "target", tiny_target("llama"), numbered([*WORDS[1:], WORDS[0]]))
    model = draft(tmp_path / "d", tokenizer=numbered(WORDS))
    with pytest.raises((ConfigError, PluginError), match="id 0 is 'w1' in the target and 'w0' in the drafter"):
        LLM(target, speculative_config=keys(model))
    with LLM(target, tokenizer=numbered(WORDS), speculative_config=keys(model)) as engine:
        assert engine.tokenizer is not None


def test_a_named_method_holds_wherever_the_checkpoint_lies_row_65(tmp_path: Path) -> None:
    _, metrics = compared(keys(draft(tmp_path / "eagle-run" / "d0"), 2))
    assert metrics.drafted > 0


def test_a_checkpoint_that_lacks_tensors_is_refused_with_their_names_row_80(tmp_path: Path) -> None:
    folder = Path(draft(tmp_path / "d"))
    state = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in state.items() if "layers.1.mlp" not in k}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(
        (TargetError, PluginError), match=r"lacks 3 of its tensors: model.layers.1.mlp.down_proj.weight"
    ):
        drafter(str(folder), FakeTarget(tiny_target("llama")))


def test_rotary_tables_are_those_of_the_checkpoint_row_88(tmp_path: Path) -> None:
    """A base given in the newer form changes the drafts, and they are the stock model's."""
    rope = {"rope_type": "llama3", "rope_theta": 5e4, "factor": 8.0, "original_max_position_embeddings": 32}
    scaled = {**rope, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    requests = [FakeRequest("a", range(3, 90)), FakeRequest("b", range(80, 20, -1))]
    drafts = []
    for name, more in (("plain", {}), ("scaled", {"rope_parameters": scaled})):
        model = draft(tmp_path / name, **more)
        proposer, _ = drafter(model, FakeTarget(tiny_target("llama")))
        for request in requests:
            proposer.start(request)
        drafts.append(asked(proposer, requests, 4).tokens.tolist())
        oracle = Oracle(model, Ids.same(128))
        assert drafts[-1] == [token for request in requests for token in oracle.drafts(request.tokens, 4)]
    assert drafts[0] != drafts[1]
