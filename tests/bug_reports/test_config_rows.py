"""Configuration, docs/bug-reports.md: k fits the modules; k = 0 runs nothing, and coming back costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import CountingVerifier, ids_of, params, prompts, run, target

from specdec_core import hookimpl
from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, ConfigWarning
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import Default, TargetInfo
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Null, Perfect, stub_plugin


class Heads:
    """A method whose checkpoint says how many tokens its modules make, and which may use them again."""

    def __init__(self, *, reusable: bool) -> None:
        self.reusable = reusable

    @hookimpl
    def specdec_method_traits(self, ctx: Any) -> MethodTraits:
        n = ctx.draft.hf_config["num_nextn_predict_layers"]
        return MethodTraits(weights="own", n_predict=n, max_tokens=None if self.reusable else n)

    @hookimpl
    def specdec_method_defaults(self, ctx: Any) -> list[Default]:
        n = ctx.draft.hf_config["num_nextn_predict_layers"]
        return [Default(key="num_speculative_tokens", value=n, reason="num_nextn_predict_layers")]

    @hookimpl
    def specdec_make_proposer(self) -> Null:
        return Null()


def heads(folder: Path, n: int, *, k: int | None = None, reusable: bool = False) -> int:
    """Resolve a configuration for a checkpoint of n modules and for k tokens; return the k that comes out."""
    (folder / "config.json").write_text(json.dumps({"num_nextn_predict_layers": n}))
    config = {"method": "heads", "model": str(folder), "num_speculative_tokens": k}
    registry = Registry(Catalog.discover().with_local({"heads": Heads(reusable=reusable)}))
    info = TargetInfo.from_config(None, target("llama").config.to_dict())
    return resolve(config, info, registry).num_speculative_tokens


def test_k_is_what_the_checkpoint_proposes_if_it_is_left_out_row_71(tmp_path: Path) -> None:
    assert heads(tmp_path, 1) == 1
    assert heads(tmp_path, 3) == 3
    assert heads(tmp_path, 3, k=2) == 2


def test_k_above_n_predict_is_refused_with_n_predict_row_72(tmp_path: Path) -> None:
    said = r"num_speculative_tokens: 4 given, and heads drafts at most 3 \(its n_predict\) here \(give at most 3\)"
    with pytest.raises(ConfigError, match=said):
        heads(tmp_path, 3, k=4)


def test_a_module_is_used_again_only_if_the_method_says_so_and_never_quietly_row_73(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at most 1 \(its n_predict\)"):
        heads(tmp_path, 1, k=3)
    with pytest.warns(ConfigWarning, match="3 is above the n_predict of heads, 1: its modules are used 3 times"):
        assert heads(tmp_path, 1, k=3, reusable=True) == 3
    with pytest.raises(ConfigError, match=r"takes only multiples of 2 \(give 2 or 4\)"):
        heads(tmp_path, 2, k=3, reusable=True)


def test_switched_off_by_batch_size_calls_neither_proposer_nor_verifier_row_76() -> None:
    model, texts, sampling = target("llama"), prompts(range(5, 13)), params()
    plain = run(model, texts, sampling)
    for off in ({"disable_by_batch_size": 2}, {"num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 99, 0]]}):
        stub, verifier = Fixed([5, 5]), CountingVerifier()
        config = {**off, "rejection_sample_method": "counting"}
        spec = run(model, texts, sampling, stub, config=config, plugins={"counting": verifier})
        assert ids_of(spec) == ids_of(plain)
        assert (stub.calls, stub.started, verifier.calls) == (0, [], 0)
        assert sum(result.metrics.drafted for result in spec) == 0


def test_a_request_that_was_off_for_a_while_drafts_as_well_as_before_row_77() -> None:
    model = target("llama")
    texts = prompts((9, 5, 6, 7, 8, 5, 6, 7))
    sampling = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (60, *[3] * 7)]
    plain = run(model, texts, sampling)
    perfect = Perfect.of_run(texts, plain)
    stub = RecordingProposer("none", hidden=False, inner=perfect)
    config = {"method": "stub", "num_speculative_tokens": 4, "disable_by_batch_size": 2}
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        stream = llm.stream(texts[0], sampling[0])
        for _ in range(4):
            next(stream)
        calls = stub.calls
        others = llm.generate(texts[1:], sampling[1:])
        assert stub.calls == calls, "off while eight were running"
        last = list(stream)[-1]
    assert ids_of([last, *others]) == ids_of(plain)
    assert stub.calls > calls > 0
    assert perfect.strayed == 0
    assert last.metrics.accepted == last.metrics.drafted
    assert last.metrics.acceptance_rate == 1.0


def test_a_schedule_switches_between_sizes_without_work_in_between_row_78() -> None:
    model, texts = target("llama"), prompts()
    sampling = [SamplingParams(temperature=0.0, max_tokens=6 + 3 * i, ignore_eos=True) for i in range(8)]
    plain = run(model, texts, sampling)
    stub, verifier = RecordingProposer("none", hidden=False, inner=Fixed([7, 7, 7])), CountingVerifier()
    config = {"num_speculative_tokens_per_batch_size": {"1-4": 2, "5-512": 0}, "rejection_sample_method": "counting"}
    spec = run(model, texts, sampling, stub, k=3, config=config, plugins={"counting": verifier})
    assert ids_of(spec) == ids_of(plain)
    assert stub.calls > 0
    assert verifier.calls <= stub.calls
    sizes = [len(call.request_ids) for call in stub.calls_seen]
    assert max(sizes) == 4, "eight to five requests ran without a call"
    assert {most for call in stub.calls_seen for most in call.max_draft} <= {0, 1, 2}


def test_a_method_without_a_model_needs_nothing_of_one_row_79() -> None:
    model = target("llama")
    for name in ("image_token_index", "draft_vocab_size", "num_nextn_predict_layers"):
        assert not hasattr(model.config, name)
    for given in ({"method": "ngram"}, {"model": "ngram"}, {"model": "[ngram]"}):
        with LLM(hf_model=model, speculative_config={**given, "num_speculative_tokens": 3}) as llm:
            assert llm.resolved_config is not None
            assert (llm.resolved_config.method, llm.resolved_config.draft) == ("ngram", None)
            assert llm.generate([[5, 6, 7]], params(1))[0].finished
