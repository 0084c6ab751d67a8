"""Requests share tables by namespace, files and limits hold, and the text is plain decoding's whatever was learnt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.draft import BatchView
from specdec_core.errors import ConfigError, SpecdecError
from specdec_core.noise import Noise
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine import LLM, SamplingParams
from specdec_plugin_token_recycling.kernels.numba import Table
from specdec_plugin_token_recycling.options import RecyclingOptions, RecyclingRequestOptions
from specdec_plugin_token_recycling.proposer import RecyclingProposer
from specdec_plugin_token_recycling.table_file import read, write
from specdec_testing.fakes import FakeRequest
from specdec_testing.identity import assert_same_output
from specdec_testing.targets import tiny_target

INFO = TargetInfo(model=None, hf_config={}, vocab_size=128, hidden_size=32, num_layers=2, max_model_len=256)
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
PROMPT = {"prompt_token_ids": [5, 9, 14, 5, 9]}
SALT, OTHER = {"cache_salt": "a"}, {"cache_salt": "b"}


def llm_of(model=None, **options):
    config = {"method": "token_recycling", "cut_by_cost": False, **options}  # what is cut depends on times
    return LLM(hf_model=model or tiny_target("llama"), speculative_config=config, strict=True)


def resolved(**options):
    return resolve({"method": "token_recycling", **options}, INFO, Registry(Catalog.discover(), strict=True))


def contents(keys=((-1, 3), (2, 7))):
    top = np.array([[1, 2], [4, -1]], np.int32)[: len(keys)]
    logprobs = np.array([[-0.5, -1.5], [-0.1, -np.inf]], np.float32)[: len(keys)]
    return np.array(keys, np.int32).reshape(-1, 2), top, logprobs


def in_namespace(params, name):
    return replace(params, extra_args={"specdec": {"namespace": name}})


def accepted(llm, params):
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    return output.metrics.accepted, output.outputs[0].token_ids


def test_the_second_answer_of_a_namespace_is_warm_and_that_of_another_one_is_not():
    with llm_of() as llm:
        cold, text = accepted(llm, in_namespace(GREEDY, "a"))
        warm, again = accepted(llm, in_namespace(GREEDY, "a"))
        other, third = accepted(llm, in_namespace(GREEDY, "b"))
    assert warm > cold == other
    assert text == again == third


def test_without_sharing_every_answer_is_cold():
    with llm_of(shared=False) as llm:
        counts = {accepted(llm, GREEDY)[0] for _ in range(2)}
    assert len(counts) == 1


def test_neighbours_of_any_kind_change_drafts_and_no_text():
    """Greedy and sampled, alone and beside others, cold and warm, prompts in chunks, and too little room for all."""
    model = tiny_target("llama", max_position_embeddings=512)
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(3, 128, n).tolist()} for n in (30, 41, 22)]
    params = [SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=45, ignore_eos=True) for i in range(3)]
    plain = LLM(hf_model=model, strict=True).generate(prompts, params, use_tqdm=False)
    config = {"method": "token_recycling"}
    for more in ({}, {"kv_cache_tokens": 144}, {"prefill_chunk_size": 7}, {"max_num_seqs": 1}):
        with LLM(hf_model=model, speculative_config=config, strict=True, **more) as llm:
            for _ in range(2):
                assert_same_output(plain, llm.generate(prompts, params, use_tqdm=False), str(more))


def test_trees_ride_beside_chains_of_another_part():
    """Merged with n-gram drafts, whose rejected rows teach the table as well."""
    model = tiny_target("llama", max_position_embeddings=512)
    prompts = [{"prompt_token_ids": [7, 8, 9] * 10}, PROMPT]
    plain = LLM(hf_model=model, strict=True).generate(prompts, GREEDY, use_tqdm=False)
    methods = [{"method": "ngram", "num_speculative_tokens": 4}, {"method": "token_recycling"}]
    config = {"method": "combine", "rule": "merge", "methods": methods, "num_speculative_tokens": 12}
    with LLM(hf_model=model, speculative_config=config, strict=True) as llm:
        spec = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert llm.resolved_config.traits.verified_top_k == 8
    assert_same_output(plain, spec)
    assert sum(result.metrics.accepted for result in spec) > 0


def test_a_file_makes_the_first_answer_warm(tmp_path):
    file = tmp_path / "table"
    with llm_of(save_cache=str(file)) as llm:
        cold, text = accepted(llm, GREEDY)
    with llm_of(load_cache=str(file), save_cache=str(file)) as llm:
        warm, again = accepted(llm, GREEDY)
    assert warm > cold and text == again
    assert list(read(file).tables) == [""] and file.stat().st_mode & 0o777 == 0o600
    for options in ({"candidates": 3}, {"pairs": 0}, {"pairs": 7}):
        with llm_of(load_cache=str(file), **options) as llm:
            assert accepted(llm, GREEDY)[1] == text


def test_a_file_gives_back_what_was_written(tmp_path):
    write(tmp_path / "table", 2, {"a": contents(), "": contents(()), "b": contents(((0, 5),))})
    found = read(tmp_path / "table")
    assert list(found.tables) == ["a", "", "b"] and found.candidates == 2 and found.vocabulary == 8
    for name, keys in (("a", ((-1, 3), (2, 7))), ("", ()), ("b", ((0, 5),))):
        for given, back in zip(contents(keys), found.tables[name], strict=True):
            assert np.array_equal(given, back)


BAD = {
    "cut off": (lambda data: data[:-1], "checksum"),
    "changed": (lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:], "checksum"),
    "foreign": (lambda data: b"SPDSUFFX" + data[8:], "no token recycling file"),
    "short": (lambda data: data[:12], "no token recycling file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_with_the_reason(kind, tmp_path):
    change, reason = BAD[kind]
    file = tmp_path / "table"
    write(file, 2, {"": contents()})
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ConfigError, match=reason):
        resolved(load_cache=str(file))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (([[0, 3], [0, 3]], [[1, 2], [1, 2]], [[-1, -2], [-1, -2]]), "keys that do not ascend"),
        (([[-2, 3]], [[1, 2]], [[-1, -2]]), "keys that do not ascend"),
        (([[0, 3]], [[-1, 2]], [[-np.inf, -2]]), "a candidate after none"),
        (([[0, 3]], [[2, 2]], [[-1, -2]]), "repeated"),
        (([[0, 3]], [[1, 2]], [[-2, -1]]), "not in order"),
        (([[0, 3]], [[1, 2]], [[np.nan, -1]]), "log-probability"),
        (([[0, 3]], [[1, 2]], [[0.5, -1]]), "log-probability"),
    ],
)
def test_rows_that_no_table_has_are_refused(rows, reason, tmp_path):
    keys, top, logprobs = rows
    table = np.array(keys, np.int32), np.array(top, np.int32), np.array(logprobs, np.float32)
    write(tmp_path / "table", 2, {"": table})
    with pytest.raises(SpecdecError, match=reason):
        read(tmp_path / "table")


def test_what_does_not_fit_together_is_refused_by_key(tmp_path):
    write(tmp_path / "table", 2, {"": contents(((-1, 3), (-1, 500)))})
    for options, said in (
        ({"load_cache": str(tmp_path / "table")}, "has the id 500"),
        ({"load_cache": str(tmp_path / "none")}, "cannot be read"),
        ({"save_cache": str(tmp_path / "no" / "folder")}, "folder that does not exist"),
        ({"shared": False, "save_cache": str(tmp_path / "new")}, "shared is false"),
        ({"template": [[0]]}, "tree is 'dynamic'"),
        ({"tree": "static", "template": [[0], [9]]}, "rank 9"),
        ({"tree": "static", "template": [[0, 0], [0]]}, "before its own beginning"),
        ({"tree": "static", "template": [[0]], "num_speculative_tokens": 2}, "num_speculative_tokens"),
    ):
        with pytest.raises(ConfigError, match=said):
            resolved(**options)


def test_traits_follow_the_options():
    traits = {tree: resolved(tree=tree).traits for tree in ("dynamic", "static", "chain")}
    assert [traits[tree].shape for tree in traits] == ["tree", "tree", "chain"]
    assert all(one.verified_top_k == 8 and one.remembers for one in traits.values())
    assert resolved(candidates=3, shared=False).traits.verified_top_k == 3
    assert not resolved(shared=False).traits.remembers
    assert resolved(tree="static", template=[[0], [1]]).num_speculative_tokens == 2


def test_a_prompts_salt_keeps_what_is_learnt_of_it_from_others():
    with llm_of() as llm:
        counts = [llm.generate({**PROMPT, **salt}, GREEDY)[0].metrics.accepted for salt in (SALT, SALT, {}, OTHER)]
    assert counts[1] > counts[0] == counts[2] == counts[3]


def test_namespaces_in_which_nobody_runs_leave_the_oldest_first():
    proposer = RecyclingProposer(RecyclingOptions(max_namespaces=2), 128, 4, Table)

    def start(name, namespace):
        request = FakeRequest(name, [5, 6], extra=RecyclingRequestOptions(namespace=namespace))
        proposer.start(request.view)
        return request.view

    first, second = start("1", "a"), start("2", "b")
    held = proposer.memory_bytes()
    third = start("3", "c")  # all of them run, so all stay
    assert list(proposer._tables) == ["a", "b", "c"] and proposer.memory_bytes() == held // 2 * 3
    proposer.finish(second, "done")
    assert list(proposer._tables) == ["a", "c"]
    proposer.finish(first, "done")
    start("4", "d")
    assert list(proposer._tables) == ["c", "d"]
    proposer.finish(third, "aborted")
    assert proposer.memory_bytes() == held


def test_an_unknown_request_is_an_error_that_tells_what_to_do():
    proposer = RecyclingProposer(RecyclingOptions(), 128, 4, Table)
    view, one = FakeRequest("a", [5, 6]).view, np.ones(1, np.int32)
    noise = Noise(np.zeros(1, np.uint64), one, np.zeros(1, np.int32))
    with pytest.raises(SpecdecError, match="call start"):
        proposer.propose(BatchView([view], one, np.ones(1, np.bool_), one, noise))
