"""`token_recycling` keeps the contract of proposers, and its text is plain decoding's, in every form of its drafts."""

from __future__ import annotations

import pytest

from specdec_testing.contract import ProposerContract
from specdec_testing.identity import IdentityContract

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
    """Requests share what is learnt: drafts may depend on the others, as the traits say."""

    @pytest.fixture
    def method(self):
        return "token_recycling"

    @pytest.mark.xfail(reason="drafts may depend on outputs of other requests", strict=True)
    def test_a_batch_drafts_what_its_rows_draft_alone(self, built, traits, target, k):
        super().test_a_batch_drafts_what_its_rows_draft_alone(built, traits, target, k)

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
