"""A machine with a scripted cost table, on which requests accept drafts by a script; it has no clock and no chance."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from specdec_core.stats import StepStats


class Table:
    """Costs by a function of the rows, and of the longest limit; `known` False stands for nothing measured."""

    def __init__(self, step, draft=lambda most: 0.0 * most):
        self.step, self.draft, self.known = step, draft, True

    def step_ms(self, rows):
        return self.step(np.asarray(rows, np.float64)) if self.known else None

    def draft_ms(self, most):
        return self.draft(np.asarray(most, np.float64)) if self.known else None


def linear(rows):
    return 10.0 * rows


def free(rows):
    return 10.0 + 0.0 * rows


def steep_from(limit):
    """Rows up to `limit` are free, each one beyond costs as much as all of them."""
    return lambda rows: 10.0 + 10.0 * np.maximum(rows - limit, 0)


class Machine:
    """Leads a controller through steps; `runs[name]` is how many drafts a request would accept, a number or a call."""

    def __init__(self, controller, table, k):
        self.controller, self.k = controller, k
        self.table = table
        controller.use_costs(table)
        self.accepts = {}
        self.offers = {}
        self.given = []

    def step(self, names=None):
        """Return the limits of one step."""
        names = list(self.accepts) if names is None else names
        limits = self.controller.limit([SimpleNamespace(id=name) for name in names], [self.k] * len(names))
        assert all(0 <= limit <= self.k for limit in limits)
        drafted = [min(limit, self.offers.get(name, self.k)) for name, limit in zip(names, limits, strict=True)]
        accepted = [min(count, self._accepts(name)) for name, count in zip(names, drafted, strict=True)]
        asked = [limit > 0 for limit in limits]
        emitted = [count + 1 for count in accepted]
        self.controller.observe(StepStats(names, drafted, drafted, accepted, emitted, asked=asked))
        self.given.append(dict(zip(names, limits, strict=True)))
        return dict(zip(names, limits, strict=True))

    def run(self, steps, name="a"):
        """Return the limits that one request got."""
        return [self.step()[name] for _ in range(steps)]

    def _accepts(self, name):
        script = self.accepts[name]
        return script() if callable(script) else script
