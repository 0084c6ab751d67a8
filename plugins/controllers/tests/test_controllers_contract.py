"""Every controller of this distribution keeps the promises of controllers, as the kit has them."""

from __future__ import annotations

import pytest

from specdec_testing.controller import ControllerContract


class TestContract(ControllerContract):
    @pytest.fixture(params=["adaptive", "confidence", "goodput"])
    def controller(self, request):
        return request.param
