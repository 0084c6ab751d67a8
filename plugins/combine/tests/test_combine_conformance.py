"""`combine` keeps the promises of every proposer under each rule, and its text is the plain one."""

from __future__ import annotations

import pytest

from specdec_testing.contract import ProposerContract
from specdec_testing.identity import IdentityContract
from specdec_testing.subject import SubjectFixtures

LOOKUP = [
    {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4},
    {"method": "ngram", "prompt_lookup_max": 1, "match": "latest", "num_speculative_tokens": 3},
]
WITH_TREE = [
    {"method": "suffix", "tree_drafts": True, "suffix_decoding_max_cached_requests": 0, "num_speculative_tokens": 4},
    LOOKUP[1],
]


class Subject(SubjectFixtures):
    @pytest.fixture
    def method(self):
        return "combine"

    @pytest.fixture(params=["first", "longest", "extend", "merge", "learned", "merge of a tree"])
    def options(self, request):
        rule = request.param.split()[0]
        return {"rule": rule, "methods": WITH_TREE if "tree" in request.param else LOOKUP}


class TestContract(Subject, ProposerContract):
    pass


class TestIdentity(Subject, IdentityContract):
    families = ("llama",)
