"""Controllers in the engine: the text is the plain one, whatever they decide, and they act as `explain` says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.identity import IdentityContract, assert_same_output, drafted
from specdec_testing.stubs import Soft, stub_plugin
from specdec_testing.table import joint, random_table, table_target
from specdec_testing.targets import tiny_target

CONTROLLERS = ("adaptive", "confidence", "goodput")
VOCAB, LENGTH, REQUESTS = 3, 3, 3000
TARGET = random_table(VOCAB, seed=1, concentration=0.8)


class _Identity(IdentityContract):
    families = ("llama",)
    ks = (4,)
    controller = ""

    @pytest.fixture
    def options(self):
        return {"controller": self.controller}


class TestNgramAdaptive(_Identity):
    controller = "adaptive"

    @pytest.fixture
    def method(self):
        return "ngram"

    @pytest.fixture
    def options(self):
        return {"controller": self.controller, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


class TestSuffixConfidence(_Identity):
    controller = "confidence"

    @pytest.fixture
    def method(self):
        return "suffix"

    @pytest.fixture
    def options(self):
        return {"controller": self.controller, "suffix_decoding_min_token_prob": 0.0}


class TestTreesConfidence(_Identity):
    """Trees of which the likeliest nodes stay."""

    controller = "confidence"

    @pytest.fixture
    def method(self):
        return "combine"

    @pytest.fixture
    def options(self):
        parts = [{"method": "suffix", "suffix_decoding_min_token_prob": 0.0}, {"method": "token_recycling"}]
        return {"controller": self.controller, "rule": "merge", "methods": parts}


class TestSuffixGoodput(_Identity):
    controller = "goodput"

    @pytest.fixture
    def method(self):
        return "suffix"


@pytest.mark.slow
class TestTreesAdaptive(_Identity):
    controller = "adaptive"

    @pytest.fixture
    def method(self):
        return "suffix"

    @pytest.fixture
    def options(self):
        return {"controller": self.controller, "tree_drafts": True}


def generate(config=None, max_tokens=40, temperature=0.0, **llm):
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 9, 14] * 5, [7] * 20, [3, 4, 5, 6], [8, 9] * 9)]
    params = [
        SamplingParams(temperature=temperature, max_tokens=max_tokens - 9 * i, ignore_eos=True, seed=i)
        for i in range(len(prompts))
    ]
    with LLM(hf_model=tiny_target("llama"), speculative_config=config, max_model_len=192, strict=True, **llm) as host:
        results = host.generate(prompts, params)
        return results, host._engine


NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
OFF = {"num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 4, 0]]}


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("more", [{}, {"kv_cache_tokens": 80}, {"off": OFF}, {"max_num_seqs": 2}], ids=str)
def test_batches_preemption_and_gaps_change_no_text(controller, more):
    plain, _ = generate(temperature=0.7)
    config = {**NGRAM, "controller": controller, **more.get("off", {})}
    llm = {key: value for key, value in more.items() if key != "off"}
    results, _ = generate(config, temperature=0.7, **llm)
    assert_same_output(plain, results)
    assert drafted(results) > 0


@pytest.mark.parametrize("controller", ["adaptive", "goodput"])
def test_the_engine_tells_costs_of_decoding_steps_and_the_end_of_each_request(controller):
    _, engine = generate({**NGRAM, "controller": controller})
    contained = engine.reports._controller
    paced = contained._controller
    assert len(paced.places) == 0, "all requests have ended"
    one, many = paced.costs.step_ms([1, 8])
    assert 0 < one <= many


class Unsure(Soft):
    """Draws its drafts, with the probability of each drawn id as its estimate; cuts by it only if it is told to."""

    def __init__(self, table, *, cuts=False):
        super().__init__(table)
        self.cuts = cuts

    def propose(self, batch):
        draft = super().propose(batch)
        if draft.q is None or not len(draft.tokens):
            return draft
        chance = draft.q[draft.q_row, draft.tokens].numpy().astype(np.float32).clip(0, 1)
        draft.confidence = chance
        if not self.cuts:
            return draft
        ends = np.cumsum(draft.lengths)[:-1]
        return draft.keep(np.concatenate([np.logical_and.accumulate(part > 0.4) for part in np.split(chance, ends)]))


def texts(stub, verifier, controller=None):
    config = {"method": "stub", "num_speculative_tokens": 3, "rejection_sample_method": verifier}
    if controller is not None:
        config["controller"] = controller
    sampling = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=LENGTH + 3, ignore_eos=True) for i in range(REQUESTS)
    ]
    model = table_target(TARGET, num_layers=1, max_position_embeddings=64)
    plugins = {"stub": stub_plugin(stub)}
    with LLM(hf_model=model, speculative_config=config, plugins=plugins, max_num_seqs=REQUESTS, strict=True) as llm:
        results = llm.generate([{"prompt_token_ids": [0]}] * REQUESTS, sampling, use_tqdm=False)
    found = np.array([result.outputs[0].token_ids[:LENGTH] for result in results])
    return np.bincount(found @ (VOCAB ** np.arange(LENGTH)[::-1]), minlength=VOCAB**LENGTH), drafted(results)


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["standard", "block"])
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_texts_of_drawn_drafts_have_the_targets_distribution(controller, verifier):
    counts, verified = texts(Unsure(random_table(VOCAB, seed=2, concentration=0.5)), verifier, controller)
    assert verified > REQUESTS / 4
    assert_follows(counts, joint(TARGET, 0, LENGTH))


@pytest.mark.slow
def test_a_drafter_that_cuts_its_drawn_drafts_by_their_own_estimates_would_be_seen():
    counts, _ = texts(Unsure(random_table(VOCAB, seed=2, concentration=0.5), cuts=True), "standard")
    with pytest.raises(AssertionError, match="do not follow"):
        assert_follows(counts, joint(TARGET, 0, LENGTH))


def explained(config):
    target = TargetInfo.from_config("path/to/model", tiny_target("llama").config.to_dict(), 192)
    return resolve(config, target, Registry(Catalog.discover()))


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_explain_names_the_controller_and_the_configuration_comes_back_from_json(controller):
    resolved = explained({**NGRAM, "controller": controller, "controller_probe_every": 8})
    decisions = {decision.key: str(decision.value) for decision in resolved.decisions}
    assert decisions["controller"] == controller
    data = json.loads(json.dumps(resolved.as_json()))["controller"]
    assert data["name"] == controller and data["options"]["controller_probe_every"] == 8


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"controller": "adaptiv"}, "did you mean 'adaptive'"),
        ({"controller": "adaptive", "controller_probe_every": 1}, "controller_probe_every"),
        ({"controller": "goodput", "controller_hysteresis": 0.1}, "controller_hysteresis"),
    ],
)
def test_what_a_controller_cannot_do_is_refused_by_name(config, match):
    with pytest.raises(ConfigError, match=match):
        explained({**NGRAM, **config})
