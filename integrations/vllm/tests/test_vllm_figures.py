"""What a controller is told of vLLM's steps: times from one call for drafts to the next, and rows of prompts apart."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from specdec_core.errors import ConfigError
from specdec_core.host.controlling import ContainedController
from specdec_vllm.figures import Figures, Scheduled
from specdec_vllm.proposer import check_alone


class Reports:
    def __init__(self):
        self.steps = []

    def step(self, stats):
        self.steps.append(stats)


def test_the_time_of_a_step_is_that_between_two_calls_for_drafts():
    reports = Reports()
    figures = Figures(reports)
    figures.verified(["a"], [1], Scheduled({}, 5), None)
    assert "forward" not in reports.steps[0].seconds, "nothing was drafted before the first step"
    figures.proposed({"a": (2, True)}, 0.5)
    before = time.perf_counter()
    time.sleep(0.02)
    figures.verified(["a"], [3], Scheduled({"a": [4, 5]}, 3), None)
    seconds = reports.steps[1].seconds
    assert seconds["propose"] == 0.5
    assert 0.02 <= seconds["forward"] <= 1.1 * (time.perf_counter() - before) + 0.01


def test_rows_of_prompts_and_of_requests_that_did_not_speculate_are_told_apart():
    reports = Reports()
    figures = Figures(reports)
    figures.proposed({"a": (2, True), "b": (0, False)}, 0.0)
    figures.verified(["a", "b"], [3, 1], Scheduled({"a": [4, 5]}, 4), None)
    figures.proposed({"a": (1, True), "b": (0, False)}, 0.0)
    figures.verified(["a", "b", "new"], [1, 1, 1], Scheduled({"a": [4]}, 3 + 40), None)
    assert [step.prompt_rows for step in reports.steps] == [0, 40]


class Reading:
    def limit(self, requests, k):
        return k

    def observe(self, stats):
        """Nothing to learn."""

    def use_costs(self, costs):
        self.costs = costs


class Deaf:
    limit, observe = Reading.limit, Reading.observe


def test_where_processes_would_disagree_a_controller_that_reads_times_is_refused():
    two, one = SimpleNamespace(tensor_parallel_size=2), SimpleNamespace(tensor_parallel_size=1)
    check_alone(ContainedController(Reading(), "mine"), "mine", one)
    check_alone(ContainedController(Deaf(), "mine"), "mine", two)
    with pytest.raises(ConfigError, match=r"controller 'mine' decides by times .* tensor_parallel_size=2"):
        check_alone(ContainedController(Reading(), "mine"), "mine", two)
