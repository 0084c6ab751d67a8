"""Every verifier of this distribution keeps the promises of verifiers, as the kit has them."""

from __future__ import annotations

import pytest

from specdec_testing.verifier import VerifierContract

OPTIONS = {"synthetic": {"synthetic_acceptance_length": 2.5}}


class TestContract(VerifierContract):
    @pytest.fixture(params=["block", "coupled", "fly", "standard", "synthetic", "typical"])
    def verifier(self, request):
        return request.param

    @pytest.fixture
    def options(self, verifier):
        return OPTIONS.get(verifier, {})
