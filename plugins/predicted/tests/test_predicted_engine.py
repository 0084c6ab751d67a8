"""`predicted` in the engine: the text is the plain one whatever the prediction, and a right one is accepted whole."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_testing.identity import IdentityContract, assert_same_output
from specdec_testing.targets import tiny_target

PROMPTS = [[5, 9, 14], [7] * 20, [3, 4, 5, 6]]


def with_prediction(params, prediction):
    return replace(params, extra_args={"specdec": {"prediction": prediction}})


def changed(ids, kind):
    """Return the ids of an output as a prediction of some kind."""
    return {
        0: ids,
        1: [*ids[:4], 101, *ids[4:]],
        2: [],
        3: [*ids, *ids[::-1], *range(3, 120)],
        4: ids[:3] + ids[6:],
        5: [token + 1 for token in ids if token < 127],
    }[kind]


class TestIdentity(IdentityContract):
    """Predictions of all kinds in one batch: right, with an insertion, empty, too long, cut, wrong."""

    @pytest.fixture
    def method(self):
        return "predicted"

    def run(self, model, params, config=None, plugins=None, **llm):
        plain = super().run(model, params, None, **llm)
        if config is None:
            return plain
        told = [
            with_prediction(one, changed(result.outputs[0].token_ids, i % 6))
            for i, (one, result) in enumerate(zip(params, plain, strict=True))
        ]
        return super().run(model, told, config, plugins, **llm)


def generate(config=None, predictions=(None, None, None), max_tokens=24, **llm):
    common = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    params = [common if one is None else with_prediction(common, one) for one in predictions]
    with LLM(hf_model=tiny_target("llama"), speculative_config=config, max_model_len=192, **llm) as host:
        return host.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)


def ids_of(results):
    return [list(result.outputs[0].token_ids) for result in results]


def test_a_right_prediction_is_accepted_whole_and_counted():
    plain = generate()
    results = generate({"method": "predicted", "num_speculative_tokens": 5}, ids_of(plain), strict=True)
    assert_same_output(plain, results)
    for result in results:
        # The first id comes with the prompt; then 5 drafts and one id more a step, and 5 ids at the end.
        assert (result.metrics.drafted, result.metrics.accepted) == (19, 19)


def test_a_wrong_prediction_costs_a_few_drafts_and_no_prediction_none():
    plain = generate()
    wrong = [120 - token for token in ids_of(plain)[0]]
    results = generate({"method": "predicted", "num_speculative_tokens": 5}, [wrong, None, None], strict=True)
    assert_same_output(plain, results)
    assert [result.metrics.drafted for result in results][1:] == [0, 0]
    assert 0 < results[0].metrics.drafted <= 20


def test_preemption_changes_neither_text_nor_what_is_accepted():
    plain = generate()
    config = {"method": "predicted", "num_speculative_tokens": 4}
    easy = generate(config, ids_of(plain), strict=True)
    tight = generate(config, ids_of(plain), strict=True, kv_cache_tokens=80)
    assert_same_output(easy, tight)


@pytest.mark.parametrize("prediction", [3.5, [1.5], {"text": "x"}])
def test_what_is_no_prediction_is_refused_before_the_request_runs(prediction):
    with pytest.raises(RequestError, match="prediction"):
        generate({"method": "predicted"}, [prediction, None, None])


class Letters:
    """A tokenizer whose ids are letters: a is 3, b is 4, and so on."""

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [ord(letter) - ord("a") + 3 for letter in text]


def test_a_prediction_as_text_is_read_with_the_hosts_tokenizer():
    from specdec_plugin_predicted.options import PredictedRequestOptions
    from specdec_plugin_predicted.proposer import PredictedProposer
    from specdec_testing.fakes import FakeRequest

    proposer = PredictedProposer(128, Letters())
    request = FakeRequest("r", [50, 51], extra=PredictedRequestOptions(prediction="abc"))
    proposer.start(request.view)
    request.extend([3])
    batch = SimpleNamespace(requests=[request.view], max_draft=as_array([4]), newest_known=as_array([True]))
    assert proposer.propose(batch).tokens.tolist() == [4, 5]


def as_array(values):
    import numpy as np

    return np.asarray(values)


@pytest.mark.parametrize(
    ("prediction", "message"),
    [("abc", "needs a tokenizer"), ((5, 500), r"the id 500, expected ids in 0\.\.127"), ((-1,), "the id -1")],
)
def test_a_prediction_that_cannot_be_read_names_what_is_wrong(prediction, message):
    from specdec_core.errors import SpecdecError
    from specdec_plugin_predicted.options import PredictedRequestOptions
    from specdec_plugin_predicted.proposer import PredictedProposer
    from specdec_testing.fakes import FakeRequest

    request = FakeRequest("r", [1], extra=PredictedRequestOptions(prediction=prediction))
    with pytest.raises(SpecdecError, match=message):
        PredictedProposer(128, None).start(request.view)
