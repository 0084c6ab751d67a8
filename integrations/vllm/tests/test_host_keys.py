"""Keys that any host of ours honours are honoured in vLLM, over ids and over states; the figures are vLLM's own."""

from __future__ import annotations

import gc
import sys

import pytest
from conftest import engine, metrics, tokens

K, MOST, CROWD = 3, 7, 5
PROMPTS = [[5, 7, 5, 7, 9], [3, 4], list(range(2, 40)), [8] * 6, [9, 9, 2], [11, 12, 13, 11, 12], [6, 6]]
SLOW = 2  # the prompt length for which the controller of the tests allows one draft
WAYS = {"ids": "repeats", "states": "repeats_states"}
KEYS = {
    "controller": "watching",
    "observers": ["watching"],
    "max_step_tokens": MOST,
    "num_speculative_tokens_per_batch_size": {"1-4": K, "5-8": 0},
}


def params():
    from vllm import SamplingParams

    return [SamplingParams(temperature=0.0, max_tokens=12 + 4 * i, ignore_eos=True) for i in range(len(PROMPTS))]


@pytest.fixture(scope="module", autouse=True)
def methods(tmp_path_factory):
    import vllm_methods

    folder = vllm_methods.register(tmp_path_factory.mktemp("site"))
    sys.path.append(str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def expected(llama):
    with engine(llama) as llm:
        return tokens(llm, PROMPTS, params())


@pytest.mark.parametrize("way", WAYS)
def test_schedule_step_budget_controller_and_observers_are_honoured(llama, expected, way):
    from vllm_methods import watching

    watching.clear()
    asked = {"method": "specdec", "model": WAYS[way], "num_speculative_tokens": K, "specdec": KEYS}
    with engine(llama, speculative_config=asked) as llm:
        assert tokens(llm, PROMPTS, params()) == expected
        counted = metrics(llm)
    del llm
    gc.collect()  # the drafter is closed when vLLM lets it go
    steps = watching.steps
    assert (len(watching.started), len(watching.ended)) == (1, 1)
    assert watching.started[0]["controller"]["name"] == "watching"
    assert [step.request_ids for step in watching.observed] == [step.request_ids for step in steps]
    # The schedule, the budget of a step, the controller.
    crowded = [step for step in steps if len(step.request_ids) > CROWD]
    assert crowded and not any(any(step.asked) or any(step.drafted) for step in crowded)
    assert max(sum(step.proposed) for step in steps) == MOST
    slow = [
        n for step in steps for name, n in zip(step.request_ids, step.proposed, strict=True) if name in watching.slow
    ]
    proposed = [pair for step in steps for pair in zip(step.request_ids, step.proposed, strict=True)]
    slow, others = [n for name, n in proposed if name in watching.slow], [n for _, n in proposed]
    assert (max(slow), max(others)) == (1, K)
    # Every id is told once, and drafts are those that vLLM counts.
    gained = sum(sum(step.emitted) for step in steps)
    assert gained == sum(len(samples[0]) for samples in expected) - len(PROMPTS)
    drafted, accepted = (sum(sum(getattr(step, name)) for step in steps) for name in ("drafted", "accepted"))
    assert (drafted, accepted) == (
        counted["spec_decode_num_draft_tokens"],
        counted["spec_decode_num_accepted_tokens"],
    )
    assert accepted > 0
    assert (watching.ended[0]["drafted"], watching.ended[0]["accepted"]) == (drafted, accepted)
    assert all(step.rows >= len(step.request_ids) for step in steps)


def test_a_controller_that_fails_costs_its_wish_and_one_line(llama, expected, logged):
    from vllm_methods import watching

    watching.clear(fails=True)
    keys = {"controller": "watching"}
    asked = {"method": "specdec", "model": "table_drafts", "num_speculative_tokens": K, "specdec": keys}
    with engine(llama, speculative_config=asked) as llm:
        assert tokens(llm, PROMPTS, params()) == expected
        assert metrics(llm)["spec_decode_num_draft_tokens"] > 0
    said = [record.getMessage() for record in logged if "controller" in record.getMessage()]
    assert len(said) == 1 and "RuntimeError: no wish" in said[0]


def test_what_a_request_asks_is_read_as_in_every_host(llama, expected, logged):
    """As a mapping or as JSON text; what is invalid costs that request its drafts, with the words of the engine."""
    own = [{"num_speculative_tokens": 1}, '{"off": true}', {"num_speculative_tokens": K + 1}, {"of": True}, "of", None]
    wanted = params()[: len(own)]
    for given, extra in zip(wanted, own, strict=True):
        given.extra_args = {"other": 1} if extra is None else {"specdec": extra}
    asked = {"method": "specdec", "model": "table_drafts", "num_speculative_tokens": K}
    with engine(llama, speculative_config=asked) as llm:
        drafted = []
        for prompt, given, text in zip(PROMPTS, wanted, expected, strict=False):
            before = metrics(llm)
            assert tokens(llm, [prompt], [given]) == [text]
            now = metrics(llm)
            names = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens")
            drafted.append(tuple(now[name] - before.get(name, 0) for name in names))
    assert drafted[0][0] == drafted[0][1] > 0  # one draft each
    assert [most for _, most in drafted[1:5]] == [0] * 4
    assert drafted[5][1] > drafted[5][0] > 0
    said = [record.getMessage() for record in logged if "without drafts" in record.getMessage()]
    key = "extra_args['specdec']"
    words = [
        f"{key}['num_speculative_tokens']={K + 1} is invalid; expected a whole number in 1 .. {K}",
        "takes no options from a request, got 'of'",
        f"{key}='of' is invalid; expected a mapping of options, or one as JSON text",
    ]
    assert len(said) == len(words) and all(word in line for word, line in zip(words, said, strict=True))


@pytest.mark.fast
def test_where_vllm_shows_nothing_controllers_and_observers_are_refused_with_the_reason(llama, monkeypatch):
    from vllm import EngineArgs

    from specdec_core.errors import ConfigError
    from specdec_vllm.bridge import call
    from specdec_vllm.proposer import Proposer

    monkeypatch.setattr(call, "is_installed", lambda: False)
    given = {"method": "table_drafts", "controller": "watching", "observers": ["watching"]}
    arguments = {
        "speculative_config": {"method": "custom_class", "model": "specdec_vllm.Proposer", "num_speculative_tokens": K},
        "additional_config": {"specdec": given},
    }
    config = EngineArgs(str(llama), dtype="float32", **arguments).create_engine_config()
    with pytest.raises(ConfigError, match=r"controller and observers cannot be honoured here.*SPECDEC_VLLM unset"):
        Proposer(config)
    config.additional_config["specdec"] = {"method": "table_drafts", "max_step_tokens": MOST}
    assert Proposer(config).containment.off is None


@pytest.mark.fast
@pytest.mark.parametrize("key", ["max_step_tokens", "controller", "observers"])
def test_with_such_a_key_a_method_is_ours_and_not_vllms(llama, key):
    from test_routes import route_of

    config = {"method": "ngram", "num_speculative_tokens": K, key: KEYS[key]}
    found = route_of(llama, config)
    assert found.name == "ids" and key in found.reason
