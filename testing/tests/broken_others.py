"""Verifiers, controllers and kernels that break one promise each, by the check that is about it."""

from __future__ import annotations

import itertools

import numpy as np

from specdec_core import hookimpl
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels
from specdec_plugin_verifiers.coupled import Coupled
from specdec_plugin_verifiers.standard import Standard

COUNT = itertools.count()


def standard():
    return Standard(Kernels(Catalog.discover(), ["specdec-plugin-verifiers"]))


class Verifying:
    """A plugin of a verifier that edits what another one decides."""

    def __init__(self, edit, inner=Coupled, refuse=False):
        self.edit, self.inner, self.refuse = edit, inner, refuse

    @hookimpl
    def specdec_verifier_check(self):
        from specdec_core.sources import Problem

        return [Problem(key="rejection_sample_method", message="not these drafts")] if self.refuse else []

    @hookimpl
    def specdec_make_verifier(self):
        return Edited(self.inner(), self.edit)


class Edited:
    def __init__(self, inner, edit):
        self.inner, self.edit = inner, edit

    def verify(self, draft, logits, noise, target_draws, greedy):
        verdict = self.inner.verify(draft, logits, noise, target_draws, greedy)
        return self.edit(verdict, draft, logits, greedy) or verdict


def good(verdict, draft, logits, greedy):
    return None


def scribbles(verdict, draft, logits, greedy):
    logits[0] = 0.0


def other_rows(verdict, draft, logits, greedy):
    verdict.logits_row = verdict.logits_row + 1


def last_ids(verdict):
    return np.cumsum(verdict.accepted + 1) - 1


def by_chance(verdict, draft, logits, greedy):
    verdict.emitted = verdict.emitted.copy()
    verdict.emitted[last_ids(verdict)[0]] = next(COUNT) % logits.shape[1]


def by_company(verdict, draft, logits, greedy):
    verdict.emitted = verdict.emitted.copy()
    last = last_ids(verdict)
    sampled = np.flatnonzero(~greedy)
    verdict.emitted[last[sampled]] = (
        np.roll(verdict.emitted[last[sampled]], 1) if len(sampled) < 100 else (verdict.emitted[last[sampled]])
    )


def not_greedy(verdict, draft, logits, greedy):
    verdict.emitted = verdict.emitted.copy()
    last = last_ids(verdict)[greedy]
    verdict.emitted[last] = (verdict.emitted[last] + 1) % logits.shape[1]


def never_0(verdict, draft, logits, greedy):
    verdict.emitted = verdict.emitted.copy()
    last = last_ids(verdict)[~greedy]
    verdict.emitted[last] = np.where(verdict.emitted[last] == 5, 4, verdict.emitted[last])


VERIFIERS = {
    "Good": (None, Verifying(good)),
    "GoodStandard": (None, Verifying(good, standard)),
    "Refuses": ("test_some_drafts_are_taken", Verifying(good, refuse=True)),
    "Scribbles": ("test_logits_and_drafts_are_left_alone", Verifying(scribbles)),
    "OtherRows": ("test_verdicts_are_in_contract", Verifying(other_rows)),
    "ByChance": ("test_the_same_noise_gives_the_same_verdict", Verifying(by_chance)),
    "ByCompany": ("test_a_batch_is_verified_as_its_rows_alone", Verifying(by_company)),
    "NotGreedy": ("test_greedy_requests_get_the_likeliest_ids", Verifying(not_greedy)),
    "NeverOne": ("test_emitted_ids_have_the_targets_distribution", Verifying(never_0)),
}


class Controlling:
    """A plugin of a controller."""

    def __init__(self, make):
        self.make = make

    @hookimpl
    def specdec_make_controller(self):
        return self.make()


class Halves:
    """Gives every request half of what it may get, rounded up, and the last seen acceptance."""

    def __init__(self):
        self.steps, self.costs, self.kept = 0, None, []

    def use_costs(self, costs):
        self.costs = costs

    def limit(self, requests, k):
        self.steps += 1
        return [(n + 1) // 2 for n in k]

    def observe(self, stats):
        pass


class Generous(Halves):
    def limit(self, requests, k):
        return [n + 1 for n in k]


class Whimsical(Halves):
    def limit(self, requests, k):
        return [next(COUNT) * 7 % (n + 1) for n in k]


class FirstOnly(Halves):
    def limit(self, requests, k):
        return [*k[:1], *[0] * (len(k) - 1)]


class NeedsCosts(Halves):
    def limit(self, requests, k):
        return super().limit(requests, k) if self.costs.step_ms([1])[0] > 0 else []


class Keeps(Halves):
    def limit(self, requests, k):
        self.kept += requests
        return super().limit(requests, k)


CONTROLLERS = {
    "Good": (None, Controlling(Halves)),
    "Generous": ("test_limits_are_those_of_the_host_or_less", Controlling(Generous)),
    "Whimsical": ("test_the_same_history_gives_the_same_limits", Controlling(Whimsical)),
    "FirstOnly": ("test_limits_do_not_depend_on_the_order_of_requests", Controlling(FirstOnly)),
    "NeedsCosts": ("test_it_does_without_measured_costs", Controlling(NeedsCosts)),
    "Keeps": ("test_no_request_is_held_after_its_end", Controlling(Keeps)),
}


def reference(values, factor):
    return values * factor


def sign_lost(values, factor):
    return abs(values) * factor


def other_arguments(values):
    return values * 2.0


def in_place(values, factor):
    values.flags.writeable = True
    values *= factor
    return values.copy()


def counting(values, factor):
    return values * factor + 1e-9 * next(COUNT)


KERNELS = {
    "Good": (None, {"reference": reference, "numba": lambda values, factor: factor * values}),
    "NoReference": ("test_an_op_has_a_reference", {"numba": reference}),
    "OtherArguments": (
        "test_backends_take_the_arguments_of_the_reference",
        {"reference": reference, "numba": other_arguments},
    ),
    "SignLost": ("test_backends_return_what_the_reference_returns", {"reference": reference, "numba": sign_lost}),
    "Counting": ("test_a_call_depends_on_its_arguments_alone", {"reference": reference, "numba": counting}),
    "InPlace": ("test_arguments_are_left_alone", {"reference": reference, "numba": in_place}),
}
