"""Whatever a method does, the engine goes on, and says what plain decoding says."""

from __future__ import annotations

import logging
import sys

import pytest
from conftest import engine, metrics, tokens

K = 4
WAYS = ["raises", "exits", "too many", "out of the vocabulary", "negative", "rows missing", "too many rows", "no draft"]
WAYS += ["floats", "raises in finish"]
PROMPTS = [[5, 7, 5, 7, 9], [3, 4], list(range(2, 40))]


def wrong(how, every):
    options = {"how": how, "every": every}
    return {
        "speculative_config": {"method": "specdec", "model": "wrong", "num_speculative_tokens": K, "specdec": options}
    }


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
        return tokens(llm, PROMPTS, greedy())


def greedy():
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)


def test_the_engine_goes_on_and_its_text_is_right_whatever_goes_wrong_in_every_other_step(llama, expected, logged):
    from vllm_methods import Wrong

    with engine(llama, **wrong("nothing", 2)) as llm:
        assert tokens(llm, PROMPTS, greedy()) == expected
        for how in WAYS:
            Wrong.now.how = how
            before = metrics(llm)["spec_decode_num_draft_tokens"]
            calls = Wrong.now.calls
            assert tokens(llm, PROMPTS, greedy()) == expected, how
            assert Wrong.now.calls - calls > 10, how
            assert ("failed" in {reason for _, reason in Wrong.now.finished}) == (how != "raises in finish"), how
            Wrong.now.finished.clear()
            assert metrics(llm)["spec_decode_num_draft_tokens"] > before, how
    said = [record.getMessage() for record in logged if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert said[0].startswith("method 'wrong' failed in propose: RuntimeError: no drafts today")


def test_each_row_gets_the_drafts_of_its_own_request(llama, expected):
    """Text cannot show it: drafts of a neighbour are rejected, and that is all. This method repeats the newest id."""
    from vllm_recording import Recording

    for name in ("Recording", "Nameless"):
        arguments = {
            "speculative_config": {
                "method": "custom_class",
                "model": f"vllm_recording.{name}",
                "num_speculative_tokens": K,
            },
            "additional_config": {"specdec": {"method": "wrong", "how": "nothing"}},
        }
        with engine(llama, **arguments) as llm:
            assert tokens(llm, PROMPTS, greedy()) == expected
        rows = [row for call in Recording.calls for row in call.rows]
        assert all(draft == new[-1:] * len(draft) for _, new, draft in rows)
        assert sum(len(draft) == K for _, _, draft in rows) > 30


@pytest.mark.parametrize("how", ["raises", "raises in start"])
def test_a_method_that_fails_step_after_step_is_switched_off_with_the_reason(llama, expected, logged, how):
    from vllm_methods import Wrong

    with engine(llama, **wrong(how, 1)) as llm:
        assert tokens(llm, PROMPTS, greedy()) == expected
        calls = Wrong.now.calls, len(Wrong.now.started)
        assert tokens(llm, PROMPTS, greedy()) == expected
        assert (Wrong.now.calls, len(Wrong.now.started)) == calls
        assert metrics(llm)["spec_decode_num_draft_tokens"] == 0
    said = [record for record in logged if record.levelno >= logging.WARNING]
    assert [record.levelno for record in said] == [logging.WARNING, logging.ERROR]
    assert "switched off" in said[1].getMessage() and "8 times in a row" in said[1].getMessage()


@pytest.mark.parametrize("tier", ["custom_class", "specdec"])
def test_a_method_that_cannot_be_had_stops_the_start_with_our_words(llama, tier):
    asked = [("nagram", "no proposer named 'nagram' is installed; did you mean 'ngram'"), ("wrong", "hwo: unknown key")]
    for method, words in asked:
        options = {"hwo": 1} if method == "wrong" else {}
        speculative = {"method": "specdec", "model": method, "num_speculative_tokens": 2, "specdec": options}
        arguments = {"speculative_config": speculative}
        if tier == "custom_class":
            arguments = {
                "speculative_config": {"method": tier, "model": "specdec_vllm.Proposer", "num_speculative_tokens": 2},
                "additional_config": {"specdec": {"method": method, **options}},
            }
        with pytest.raises(Exception, match=words), engine(llama, **arguments):
            pass


def test_a_method_that_reads_states_is_refused_without_the_plugin_tier_and_says_where_it_works(llama):
    arguments = {
        "speculative_config": {"method": "custom_class", "model": "specdec_vllm.Proposer", "num_speculative_tokens": 2},
        "additional_config": {"specdec": {"method": "reads_states"}},
    }
    with pytest.raises(RuntimeError, match=r'hidden states.*"method": "specdec"'), engine(llama, **arguments):
        pass
    without = {**arguments, "additional_config": {}}
    with pytest.raises(RuntimeError, match="--additional-config"), engine(llama, **without):
        pass


def test_options_that_vllm_has_no_place_for_are_refused_by_name(llama):
    given = {"prompt_lookup_max": 3, "rejection_sample_method": "block"}
    speculative = {"method": "specdec", "model": "ngram", "num_speculative_tokens": 2, "specdec": given}
    with pytest.raises(ValueError, match="rejection_sample_method"), engine(llama, speculative_config=speculative):
        pass


def test_vllms_own_keys_beside_the_method_reach_the_method(llama, expected):
    """The same keys, wherever they stand; k may come from the method (docs/bug-reports.md, row 79)."""
    speculative = {"method": "specdec", "model": "suffix", "suffix_decoding_max_tree_depth": 5}
    with engine(llama, speculative_config=speculative) as llm:
        config = llm.llm_engine.vllm_config.speculative_config
        assert config.num_speculative_tokens == 5
        assert config.specdec == {"method": "suffix", "suffix_decoding_max_tree_depth": 5}
        assert tokens(llm, PROMPTS, greedy()) == expected
    twice = {**speculative, "specdec": {"suffix_decoding_max_tree_depth": 6}}
    with pytest.raises(ValueError, match="given twice"), engine(llama, speculative_config=twice):
        pass
