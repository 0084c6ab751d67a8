"""A method of a third party, written against the core alone and installed as its own distribution, works in vLLM."""

from __future__ import annotations

import sys

import pytest
from conftest import engine, metrics, tokens
from vllm_recording import Recording

K = 4
PROMPTS = [[5, 7, 5, 7, 9, 5], [3, 4, 3], [*range(2, 40), 5]]
ECHO = {"method": "specdec", "model": "acme_echo", "num_speculative_tokens": K, "specdec": {"reach": 64}}


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    from vllm_methods import install_third_party

    folder = install_third_party(tmp_path_factory.mktemp("site"))
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def expected(llama):
    with engine(llama) as llm:
        return tokens(llm, PROMPTS, params())


def params(**extra):
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, extra_args=extra or None)


def test_it_drafts_in_both_tiers_and_the_text_is_the_plain_one(llama, expected, installed):
    import acme_echo

    assert str(installed) in acme_echo.__file__
    plain = {"method": "custom_class", "model": "specdec_vllm.Proposer", "num_speculative_tokens": K}
    for arguments in (
        {"speculative_config": ECHO},
        {"speculative_config": plain, "additional_config": {"specdec": {"method": "acme_echo", "reach": 64}}},
    ):
        with engine(llama, **arguments) as llm:
            assert tokens(llm, PROMPTS, params()) == expected
            assert metrics(llm)["spec_decode_num_accepted_tokens"] > 10


def test_our_offline_class_takes_the_configuration_of_the_reference_engine(llama, expected):
    import specdec_vllm

    config = '{"method": "acme_echo", "num_speculative_tokens": 4, "reach": 64}'
    with engine(llama, specdec_vllm.LLM, speculative_config=config) as llm:
        assert tokens(llm, PROMPTS, params()) == expected
        assert metrics(llm)["spec_decode_num_accepted_tokens"] > 10
    with engine(llama, specdec_vllm.LLM) as llm:
        assert llm.llm_engine.vllm_config.speculative_config is None


def test_a_request_sets_its_own_options_and_limit_and_is_told_by_name_from_start_to_end(llama, expected):
    arguments = {
        "speculative_config": {
            "method": "custom_class",
            "model": "vllm_recording.Recording",
            "num_speculative_tokens": K,
        },
        "additional_config": {"specdec": {"method": "acme_echo"}},
    }
    with engine(llama, **arguments) as llm:
        asked = [params(specdec={"off": True}), params(specdec={"num_speculative_tokens": 2})]
        asked += [params(specdec={"reach": 2}), params()]
        prompts = [*PROMPTS, PROMPTS[2]]
        assert tokens(llm, prompts, asked) == [*expected, expected[2]]
        drafts = {}
        for call in Recording.calls:
            for name, _, draft in call.rows:
                drafts.setdefault(name, []).append(draft)
        names = sorted(drafts)
        off, two, near, far = (drafts[name] for name in names)
        assert not any(off)
        assert max(map(len, two)) == 2
        assert all(len(set(draft)) == 1 for draft in near if draft)  # only a repeated id is within reach 2
        assert sum(map(len, near)) < sum(map(len, far))
        tokens(llm, PROMPTS[:1], params(specdec={"reach": 0}))  # cannot be honoured: said, and decoded plainly
        told = Recording.last.told
    assert [entry[:2] for entry in told if entry[0] == "start"] == [("start", name) for name in names[1:]]
    ends = {entry[1]: entry[2:] for entry in told if entry[0] == "finish"}
    assert sorted(ends) == names[1:]
    for name, prompt in zip(names[1:], prompts[1:], strict=True):
        reason, length = ends[name]
        assert reason == "done" and len(prompt) + 40 <= length <= len(prompt) + 40 + K
