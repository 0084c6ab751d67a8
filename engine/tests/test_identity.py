"""Whatever the drafts, tokens are those of plain decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import LENGTHS, ControllerPlugin, VaryingController, ids_of, params, prompts, run, stubs, target

from specdec_testing.stubs import Garbage, Perfect, Stub

OTHERS = ("gpt2", "qwen3", "gemma3", "mistral", "gpt_oss")
FAMILIES = ("llama", *(pytest.param(family, marks=pytest.mark.slow) for family in OTHERS))
# (dtype, decode width): free width in float32, fixed width in both.
MODES = {
    "free-fp32": (torch.float32, None),
    "fixed-fp32": (torch.float32, 5),
    "fixed-bf16": (torch.bfloat16, 5),
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
both_temperatures = pytest.mark.parametrize("temperature", [0.0, 0.8])
SLOW_MODE = pytest.param("fixed-fp32", marks=pytest.mark.slow)
all_modes = pytest.mark.parametrize("mode", ["free-fp32", SLOW_MODE, "fixed-bf16"])


def setting(mode: str, family: str = "llama") -> tuple[Any, dict[str, Any]]:
    dtype, width = MODES[mode]
    return target(family, dtype), {"decode_width": width}


@pytest.mark.parametrize("family", FAMILIES)
@all_modes
@both_temperatures
def test_every_stub_and_ngram_give_the_plain_tokens_in_a_mixed_batch(
    family: str, mode: str, temperature: float
) -> None:
    model, llm = setting(mode, family)
    texts, sampling = prompts(), params(temperature=temperature)
    plain = run(model, texts, sampling, **llm)
    assert len({tuple(r.outputs[0].token_ids) for r in plain}) == len(texts)
    for name, stub in stubs(texts, plain).items():
        spec = run(model, texts, sampling, stub, **llm)
        assert ids_of(spec) == ids_of(plain), name
        if name == "perfect":
            accepted, drafted = (sum(getattr(r.metrics, f) for r in spec) for f in ("accepted", "drafted"))
            assert accepted == drafted > 0
    spec = run(model, texts, sampling, config=NGRAM, **llm)
    assert ids_of(spec) == ids_of(plain)
    assert sum(r.metrics.drafted for r in spec) > 0


@pytest.mark.parametrize("family", FAMILIES)
@all_modes
def test_prompts_in_chunks_of_seven_give_the_plain_tokens(family: str, mode: str) -> None:
    model, llm = setting(mode, family)
    texts, sampling = prompts(), params(4, 0.0) + params(4, 0.8)
    plain = run(model, texts, sampling, prefill_chunk_size=7, **llm)
    for stub in (Perfect.of_run(texts, plain), Garbage(128)):
        assert ids_of(run(model, texts, sampling, stub, prefill_chunk_size=7, **llm)) == ids_of(plain)
    if mode == "free-fp32":
        assert ids_of(run(model, texts, sampling, **llm)) == ids_of(plain)


@pytest.mark.parametrize("family", FAMILIES)
@all_modes
def test_k_that_differs_by_row_and_changes_by_step_gives_the_plain_tokens(family: str, mode: str) -> None:
    model, llm = setting(mode, family)
    texts, sampling = prompts(), params(4, 0.0) + params(4, 0.8)
    plain = run(model, texts, sampling, **llm)
    for stub in (Perfect.of_run(texts, plain), Garbage(128)):
        controller = VaryingController()
        llm["plugins"] = {"varying": ControllerPlugin(controller)}
        spec = run(model, texts, sampling, stub, config={"controller": "varying"}, **llm)
        assert ids_of(spec) == ids_of(plain)
        assert {0, 4} <= controller.given


@pytest.mark.parametrize("family", FAMILIES)
@all_modes
def test_preemption_in_the_middle_gives_the_plain_tokens(family: str, mode: str) -> None:
    model, llm = setting(mode, family)
    texts, sampling = prompts((30, 41, 22, 35)), params(2, 0.0, 60) + params(2, 0.8, 60)
    plain = run(model, texts, sampling, **llm)
    for stub in (Perfect.of_run(texts, plain), Garbage(128)):
        spec = run(model, texts, sampling, stub, kv_cache_tokens=224, **llm)
        assert ids_of(spec) == ids_of(plain)
        assert any(reason == "preempted" for _, reason in stub.finished)


@all_modes
def test_four_samples_of_a_prompt_differ_and_each_equals_its_plain_one(mode: str) -> None:
    model, llm = setting(mode)
    texts, sampling = prompts((9, 40)), params(2, 0.8, n=4)
    plain = run(model, texts, sampling, **llm)
    for samples in ids_of(plain):
        assert len({tuple(ids) for ids in samples}) == 4
    for stub in stubs(texts, plain).values():
        assert ids_of(run(model, texts, sampling, stub, **llm)) == ids_of(plain)


@pytest.mark.slow
@all_modes
@both_temperatures
def test_a_request_says_the_same_alone_and_in_batches_of_any_size(mode: str, temperature: float) -> None:
    model, llm = setting(mode)
    texts, sampling = prompts(), params(temperature=temperature)
    alone = [ids_of(run(model, [t], [s], **llm))[0] for t, s in zip(texts, sampling, strict=True)]
    for size in range(1, len(texts) + 1):
        stub = Garbage(128, seed=size)
        assert ids_of(run(model, texts[:size], sampling[:size], stub, k=size, **llm)) == alone[:size]


@both_temperatures
def test_requests_that_join_later_change_nothing(temperature: float) -> None:
    model, texts, sampling = target("llama"), prompts(), params(temperature=temperature)
    plain = run(model, texts, sampling)
    for slots in (1, 2, 3):
        assert ids_of(run(model, texts, sampling, Garbage(128), max_num_seqs=slots)) == ids_of(plain)


def test_unseeded_requests_repeat_in_a_fresh_engine_and_differ_from_each_other() -> None:
    model, texts = target("llama"), prompts((8,) * 5, seed=4)[:1] * 8
    sampling = [s for s in params(8, 1.0)]
    sampling = [type(s)(temperature=1.0, max_tokens=12, ignore_eos=True) for s in sampling]
    first = ids_of(run(model, texts, sampling))
    assert len({tuple(ids) for (ids,) in first}) == 8
    assert ids_of(run(model, texts, sampling, Garbage(128))) == first
    assert ids_of(run(model, texts, sampling, seed=1)) != first


class WrongOneInAHundred:
    """`coupled`, except that the first rejected draft in a hundred comparisons is let through."""

    def __init__(self) -> None:
        from specdec_plugin_verifiers.coupled import Coupled

        self.inner, self.seen = Coupled(), 0

    def verify(self, draft: Any, logits: Any, noise: Any, target_draws: Any, greedy: Any) -> Any:
        verdict = self.inner.verify(draft, logits, noise, target_draws, greedy)
        start = 0
        ends = np.cumsum([0, *draft.lengths])
        for row, (accepted, length) in enumerate(zip(verdict.accepted.tolist(), draft.lengths, strict=True)):
            self.seen += 1
            if accepted < length and self.seen % 100 == 0:
                verdict.emitted[start + accepted] = draft.tokens[ends[row] + accepted]
            start += accepted + 1
        return verdict


class BrokenVerifierPlugin:
    """Offers the verifier above."""

    from specdec_core import hookimpl

    @hookimpl
    def specdec_make_verifier(self) -> WrongOneInAHundred:
        return WrongOneInAHundred()


@both_temperatures
def test_these_checks_see_one_wrong_token_in_a_hundred(temperature: float) -> None:
    model, texts, sampling = target("llama"), prompts(), params(temperature=temperature)
    plain = run(model, texts, sampling)
    stub: Stub = Garbage(128)
    config = {"rejection_sample_method": "broken"}
    spec = run(model, texts, sampling, stub, config=config, plugins={"broken": BrokenVerifierPlugin()})
    assert ids_of(spec) != ids_of(plain)
    assert len(LENGTHS) == len(spec)
