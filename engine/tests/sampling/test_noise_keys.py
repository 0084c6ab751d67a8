"""A seeded run can be repeated, and its noise is independent of whatever made the drafts.

Verifiers that decide by noise of their own are exact only if drafts do not know that noise. A text that was made with
the same seed knows it, wherever it comes from: the proposer's memory, the prompt, the request's own options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import Field

from specdec_core import hookimpl
from specdec_core.config.speculative import RequestOptions
from specdec_core.draft import BatchView, RequestView
from specdec_core.errors import MakeStageError
from specdec_core.noise import request_key
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_engine.sampling.noise_keys import NoiseKeys
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, Ids, Soft, Stub, StubPlugin
from specdec_testing.table import table_target

P = np.array([0.5, 0.3, 0.2, 0.0])
MODEL = table_target(np.tile(P, (4, 1)), num_layers=1, max_position_embeddings=64)
SEEDS = 300
SUFFIX_SEEDS = 2400  # what the shared cache knows of the noise shows in few of its drafts
LENGTH = 3
PROMPT = [0, 0, 2, 0, 1, 2]
EXACT = ["standard", "block"]


def bet(request: RequestView, earlier: Ids | None) -> Ids:
    """Draft 0 as the second id, unless an earlier answer with the same seed had another id there.

    Where the noise is the earlier one's, the draft is then made only where it is accepted, and 0 comes too often: with
    probability .75 in place of .5 the second time.
    """
    second = len(request.tokens) - request.prompt_len == 1
    return [0] if second and (not earlier or earlier[1] == 0) else []


class Copycat(Stub):
    """Knows what an earlier request with the same seed answered."""

    traits = MethodTraits(remembers=True)

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[Any, list[int]] = {}

    def memory_digest(self) -> bytes:
        return b""

    def row(self, batch: BatchView, i: int) -> Ids:
        request = batch.request(i)
        return bet(request, self.answers.get(request.sampling_params.seed))

    def finish(self, request: RequestView, reason: Any) -> None:
        super().finish(request, reason)
        self.answers[request.sampling_params.seed] = request.tokens[request.prompt_len :].tolist()


class PromptReader(Stub):
    """Reads an earlier answer in the beginning of the prompt, where the user pasted it."""

    def row(self, batch: BatchView, i: int) -> Ids:
        request = batch.request(i)
        return bet(request, request.tokens[:LENGTH].tolist())


class Hints(RequestOptions):
    """What a request may set."""

    round: int = Field(0, description="Makes options of different rounds differ.")
    ids: list[int] = Field(default_factory=list, description="Ids to draft.")


class HintReader(Stub):
    """Reads an earlier answer in the request's own options."""

    def row(self, batch: BatchView, i: int) -> Ids:
        request = batch.request(i)
        return bet(request, None if request.extra is None else request.extra.ids)


class HintPlugin(StubPlugin):
    @hookimpl
    def specdec_request_options(self, method: str) -> type[RequestOptions]:
        return Hints


def engine(stub: Any, verifier: str, plugin: type[StubPlugin] = StubPlugin, k: int = 2, **more: Any) -> LLM:
    config = {"method": "stub", "num_speculative_tokens": k, "rejection_sample_method": verifier}
    plugins = {"stub": plugin(stub, stub.traits, None)}
    return LLM(hf_model=MODEL, speculative_config=config, plugins=plugins, max_num_seqs=4096, strict=True, **more)


def params(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=LENGTH, ignore_eos=True, **more)


def texts(results: Any) -> np.ndarray:
    return np.array([sample.token_ids for result in results for sample in result.outputs])


def assert_is_target(ids: np.ndarray) -> None:
    """Compare the distribution of the second id, which drafts were made for."""
    assert_follows(np.bincount(ids[:, 1], minlength=4), P)


def remembered(verifier: str) -> np.ndarray:
    with engine(Copycat(), verifier) as llm:
        for _ in range(2):
            results = llm.generate([PROMPT] * SEEDS, [params(seed) for seed in range(SEEDS)], use_tqdm=False)
    assert sum(result.metrics.drafted for result in results) > SEEDS / 4
    return texts(results)


def pasted(verifier: str) -> np.ndarray:
    """Each prompt has another end, since a prompt that comes again rightly gets its answer again."""
    prompts = [PROMPT] * SEEDS
    with engine(PromptReader(), verifier) as llm:
        for last in range(2):
            results = llm.generate(prompts, [params(seed) for seed in range(SEEDS)], use_tqdm=False)
            prompts = [[*ids, 3, last, 3] for ids in texts(results).tolist()]
    return texts(results)


def hinted(verifier: str) -> np.ndarray:
    extra: list[Any] = [None] * SEEDS
    with engine(HintReader(), verifier, HintPlugin) as llm:
        for last in range(2):
            wanted = [params(seed, extra_args=extra[seed]) for seed in range(SEEDS)]
            results = llm.generate([PROMPT] * SEEDS, wanted, use_tqdm=False)
            extra = [{"specdec": {"round": last, "ids": ids}} for ids in texts(results).tolist()]
    return texts(results)


def shared_cache(verifier: str) -> np.ndarray:
    config = {
        "method": "suffix",
        "num_speculative_tokens": 2,
        "rejection_sample_method": verifier,
        "suffix_decoding_min_token_prob": 0.0,
        "suffix_decoding_max_spec_factor": 4.0,
    }
    with LLM(hf_model=MODEL, speculative_config=config, max_num_seqs=4096, strict=True) as llm:
        assert llm.resolved_config.traits.remembers
        assert llm._engine.keys.memory is not None
        for _ in range(4):
            spaces = [{"specdec": {"namespace": str(seed)}} for seed in range(SUFFIX_SEEDS)]
            wanted = [params(seed, extra_args=space) for seed, space in enumerate(spaces)]
            results = llm.generate([[3]] * SUFFIX_SEEDS, wanted, use_tqdm=False)
    assert sum(result.metrics.drafted for result in results) > SUFFIX_SEEDS / 8
    return texts(results)


SOURCES = {"memory": remembered, "prompt": pasted, "options": hinted, "suffix": shared_cache}


@pytest.mark.slow
@pytest.mark.parametrize("verifier", EXACT)
@pytest.mark.parametrize("source", SOURCES)
def test_drafts_of_text_made_with_the_same_seed_leave_the_targets_distribution(source: str, verifier: str) -> None:
    assert_is_target(SOURCES[source](verifier))


@pytest.mark.parametrize(("source", "verifier"), [*((source, "standard") for source in SOURCES), ("suffix", "block")])
def test_these_checks_see_noise_that_depends_on_the_seed_alone(
    source: str, verifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoiseKeys, "key", lambda self, seed, arrival, *rest: request_key(seed, self.seed, arrival))
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_is_target(SOURCES[source](verifier))


def three_calls(stub: Any, verifier: str) -> list[Any]:
    with engine(stub, verifier) as llm:
        calls = [[PROMPT, PROMPT], [PROMPT, [2, 1]], [PROMPT]]
        return [texts(llm.generate(call, params(7, n=2), use_tqdm=False)).tolist() for call in calls]


@pytest.mark.parametrize("verifier", [*EXACT, "coupled"])
@pytest.mark.parametrize("stub", [Copycat, lambda: Fixed([0, 1])], ids=["remembers", "does not"])
def test_a_new_engine_with_the_same_calls_says_the_same(stub: Any, verifier: str) -> None:
    assert three_calls(stub(), verifier) == three_calls(stub(), verifier)


def long(stub: Any, verifier: str, count: int, **more: Any) -> list[list[int]]:
    """Return the texts of `count` equal prompts with one seed in one batch, 40 ids each."""
    sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=40, ignore_eos=True, **more)
    with engine(stub, verifier) as llm:
        return texts(llm.generate([PROMPT] * count, sampling, use_tqdm=False)).tolist()


@pytest.mark.parametrize("verifier", [*EXACT, "coupled"])
def test_equal_prompts_of_one_seed_say_the_same_where_nothing_is_remembered(verifier: str) -> None:
    one, other = long(Fixed([0, 1]), verifier, 2)
    assert one == other


@pytest.mark.parametrize("verifier", EXACT)
def test_equal_prompts_of_one_seed_are_independent_where_drafts_may_come_from_each_other(verifier: str) -> None:
    one, other = long(Copycat(), verifier, 2)
    assert one != other
    coupled = long(Copycat(), "coupled", 2)
    assert coupled[0] == coupled[1]


@pytest.mark.parametrize("verifier", [*EXACT, "coupled"])
def test_samples_of_one_request_are_independent(verifier: str) -> None:
    one, other = long(Copycat(), verifier, 1, n=2)
    assert one != other


def test_coupled_says_what_the_seed_alone_says_whatever_the_prompt_and_the_memory() -> None:
    with LLM(hf_model=MODEL) as plain:
        wanted = texts(plain.generate([PROMPT], params(3), use_tqdm=False)).tolist()
    with engine(Copycat(), "coupled") as llm:
        for _ in range(3):
            assert texts(llm.generate([PROMPT], params(3), use_tqdm=False)).tolist() == wanted


def test_unseeded_requests_of_two_sessions_are_independent_where_the_prompt_differs() -> None:
    """Both sessions have the engine's default seed and the same order of arrival."""
    keys = NoiseKeys(0, True)
    assert keys.key(None, 0, np.int32([1, 2])) != keys.key(None, 0, np.int32([1, 3]))
    assert keys.key(None, 0, np.int32([1, 2])) == keys.key(None, 0, np.int32([1, 2]))


def test_what_was_loaded_at_the_start_is_part_of_the_key() -> None:
    one, other = NoiseKeys(0, True, b"a"), NoiseKeys(0, True, b"b")
    prompt = np.int32([1, 2])
    assert one.key(5, 0, prompt) != other.key(5, 0, prompt)
    assert one.key(5, 0, prompt) != one.key(5, 1, prompt)
    assert one.key(5, 0, prompt) != NoiseKeys(0, True).key(5, 0, prompt)


class NoDigest(Fixed):
    traits = MethodTraits(remembers=True)


def test_a_proposer_that_remembers_and_cannot_name_its_memory_is_refused() -> None:
    with pytest.raises(MakeStageError, match="memory_digest"):
        engine(NoDigest([0]), "standard")


class Wrong(Copycat):
    def memory_digest(self) -> Any:
        return "text"


def test_a_digest_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(MakeStageError, match="returned str, expected bytes"):
        engine(Wrong(), "standard")


class KeySeer(Stub):
    """Notes the noise keys that drafts could be drawn with."""

    def __init__(self, traits: MethodTraits) -> None:
        super().__init__()
        self.traits, self.keys = traits, list[int]()

    def row(self, batch: BatchView, i: int) -> Ids:
        self.keys.append(int(batch.noise.keys[i]))
        return ()


@pytest.mark.parametrize("verifier", EXACT)
@pytest.mark.parametrize("distribution", ["deterministic", "soft"])
def test_drafters_get_fresh_noise_in_every_step_and_never_that_of_their_acceptance(
    distribution: Any, verifier: str
) -> None:
    stub = KeySeer(MethodTraits(draft_distribution=distribution))
    with engine(stub, verifier) as llm:
        llm.generate([PROMPT], SamplingParams(temperature=1.0, seed=7, max_tokens=9, ignore_eos=True), use_tqdm=False)
        deciding = llm._engine.keys.key(7, 0, np.int32(PROMPT))
    assert len(set(stub.keys)) == len(stub.keys) > 5
    assert deciding not in stub.keys


def test_drafts_that_share_the_targets_noise_get_the_key_of_the_targets_draws() -> None:
    for verifier, wanted in (("coupled", 7), ("standard", None)):
        stub = KeySeer(MethodTraits(draft_distribution="soft", shares_noise=True))
        with engine(stub, verifier) as llm:
            llm.generate([PROMPT], params(7), use_tqdm=False)
            own = llm._engine.keys.key(7, 0, np.int32(PROMPT))
        assert set(stub.keys) == {own}
        assert wanted is None or own == wanted


def test_soft_drafts_in_all_their_steps_leave_the_targets_distribution() -> None:
    q = np.tile([0.1, 0.3, 0.6, 0.0], (4, 1))
    with engine(Soft(q), "standard") as llm:
        results = llm.generate([PROMPT] * SEEDS, [params(seed) for seed in range(SEEDS)], use_tqdm=False)
    assert_is_target(texts(results))


def test_explain_and_the_configuration_say_what_the_noise_depends_on() -> None:
    for stub, verifier, value in (
        (Copycat(), "coupled", "seed"),
        (Fixed([0]), "standard", "seed, prompt, request options"),
        (Copycat(), "block", "seed, prompt, request options, order of arrival, memory at the start"),
    ):
        with engine(stub, verifier) as llm:
            found = {decision.key: decision for decision in llm.resolved_config.decisions}["noise"]
        assert found.value == value
        assert verifier in found.reason
