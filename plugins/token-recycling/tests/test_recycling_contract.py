"""`token_recycling` keeps the contract of proposers, and its text is plain decoding's, in every form of its drafts."""

from __future__ import annotations

import numpy as np
import pytest
from recycling_oracle import step

from specdec_testing.contract import ProposerContract
from specdec_testing.identity import IdentityContract
from specdec_testing.kernel import KernelContract

FORMS = {
    "dynamic": {"shared": False},
    "static": {"tree": "static", "shared": False},
    "template": {"tree": "static", "template": [[0], [1], [0, 0], [0, 0, 0]], "shared": False},
    "chain": {"tree": "chain", "shared": False},
    "single ids": {"pairs": 0, "shared": False},
}


class TestContract(ProposerContract):
    """A table a request, so that no draft depends on another one."""

    @pytest.fixture
    def method(self):
        return "token_recycling"

    @pytest.fixture(params=FORMS)
    def options(self, request):
        return FORMS[request.param]


class TestSharedContract(ProposerContract):
    """Requests share what is learnt: drafts may depend on the others, as the traits declare."""

    @pytest.fixture
    def method(self):
        return "token_recycling"

    @pytest.mark.xfail(reason="drafts may depend on outputs of other requests", strict=True)
    def test_a_batch_drafts_what_its_rows_draft_alone(self, built, traits, target, k):
        super().test_a_batch_drafts_what_its_rows_draft_alone(built, traits, target, k)

    @pytest.mark.xfail(reason="what ranks are worth is learnt from all requests", strict=True)
    def test_a_name_can_be_used_again_after_finish(self, proposer, built, traits, target, k):
        super().test_a_name_can_be_used_again_after_finish(proposer, built, traits, target, k)

    def test_the_traits_say_that_requests_share(self, traits):
        assert traits.remembers and traits.verified_top_k == 8


class TestIdentity(IdentityContract):
    """Trees on all targets."""

    ks = (1, 9)

    @pytest.fixture
    def method(self):
        return "token_recycling"


class TestIdentityOfStaticTreesAndChains(IdentityContract):
    """A table a request."""

    families = ("llama",)

    @pytest.fixture
    def method(self):
        return "token_recycling"

    @pytest.fixture(params=["static", "chain"])
    def options(self, request):
        return FORMS[request.param]


class TestTable(KernelContract):
    """A call makes a table, shows it some steps, and returns what it then drafts and holds."""

    tolerance = 1e-6

    @pytest.fixture
    def op(self):
        return "recycling_table"

    @pytest.fixture
    def cases(self):
        rng = np.random.default_rng(0)
        sizes = [(vocabulary, n, pairs) for vocabulary, n in ((3, 2), (30, 4)) for pairs in (0, 64)]
        return [(*size, [step(rng, size[0], size[1], 9) for _ in range(20)]) for size in sizes]

    def call(self, kernel, arguments):
        vocabulary, n, pairs, steps = arguments
        table, out, confidence = kernel(vocabulary, n, pairs), np.zeros((2, 9), np.int32), np.zeros(9, np.float32)
        for rows in steps:
            table.learn(1, rows)
        count = table.grow((1, 2), 9, 0.0, out, confidence, 0)
        return out[:, :count], confidence[:count], table.contents()
