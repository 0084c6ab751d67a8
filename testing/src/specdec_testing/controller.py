"""What every controller plugin promises, as a test class: subclass it, name the controller, run pytest."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.host.factory import make_controller
from specdec_core.protocols import Controller, ForgetsRequests, ReadsCosts, Trims
from specdec_core.registry.groups import Kind
from specdec_core.sources import TargetInfo
from specdec_core.stats import StepStats
from specdec_testing.building import registry_of
from specdec_testing.fakes import FakeRequest
from specdec_testing.guard import foundation
from specdec_testing.packaging import PackagingContract
from specdec_testing.release import still_held
from specdec_testing.stubs import Null, stub_plugin

K, STEPS = 5, 80
INFO = TargetInfo(model=None, hf_config={}, vocab_size=16, hidden_size=8, num_layers=1, max_model_len=64)


class KnownCosts:
    """Costs that were measured: a step takes a fixed time and more for each row; nothing is known if `known` is not."""

    def __init__(self, *, known: bool = True) -> None:
        """Begin so."""
        self.known = known

    def step_ms(self, rows: npt.ArrayLike) -> npt.NDArray[np.float64] | None:
        """Return 10 + rows."""
        return 10.0 + np.asarray(rows, np.float64) if self.known else None

    def draft_ms(self, most: npt.ArrayLike) -> npt.NDArray[np.float64] | None:
        """Return half as much as the drafts."""
        return 0.5 * np.asarray(most, np.float64) if self.known else None


class Session:
    """Leads a controller through steps in which requests join, leave, and accept drafts by chance, from a seed."""

    def __init__(self, controller: Controller, *, costs: KnownCosts | None = None, backwards: bool = False) -> None:
        """Give the controller its costs; with `backwards` requests stand in the opposite order."""
        self.controller, self.backwards = controller, backwards
        self.problems: list[str] = []
        self.limits: list[dict[str, int]] = []
        self.seen: dict[str, weakref.ref[Any]] = {}
        if isinstance(controller, ReadsCosts):
            controller.use_costs(costs or KnownCosts())

    def run(self, steps: int = STEPS) -> Session:
        """Run the steps, end all requests, and return this object."""
        living: dict[str, FakeRequest] = {}
        for step in range(steps):
            rng = np.random.default_rng([7, step])
            for name in [name for name in living if rng.random() < 0.1]:
                self._end([name])
                del living[name]
            if len(living) < 4:
                living[f"request-{step}"] = request = FakeRequest(f"request-{step}", [1, 2, 3], seed=step)
                self.seen[request.id] = weakref.ref(request.view)
            names = list(living)[:: -1 if self.backwards else 1]
            self._step({name: living[name].view for name in names}, step)
        self._end(list(living))
        return self

    def _step(self, requests: Mapping[str, Any], step: int) -> None:
        chance = {name: np.random.default_rng([step, int(name.rpartition("-")[2])]) for name in requests}
        most = [int(chance[name].integers(0, K + 1)) for name in requests]
        limits = [int(limit) for limit in self.controller.limit(list(requests.values()), most)]
        if len(limits) != len(most) or any(not 0 <= n <= k for n, k in zip(limits, most, strict=False)):
            self.problems.append(f"step {step}: limits {limits} for k {most}")
            limits = [0] * len(most)
        kept = self._trimmed(requests, limits, step)
        accepted = [int(chance[name].integers(0, n + 1)) for name, n in zip(requests, kept, strict=True)]
        failed = "the proposer failed" if step % 17 == 16 else None
        emitted = [n + 1 for n in accepted]
        asked = [limit > 0 for limit in limits]
        stats = StepStats(list(requests), limits, kept, accepted, emitted, failed=failed, rows=sum(kept) + len(kept))
        stats.asked = asked
        self.controller.observe(stats)
        self.limits.append(dict(zip(requests, kept, strict=True)))

    def _trimmed(self, requests: Mapping[str, Any], limits: list[int], step: int) -> list[int]:
        """Return how many drafts are kept, of which the first are surer than the others."""
        if not isinstance(self.controller, Trims):
            return limits
        confidence = [(0.9 ** np.arange(1, n + 1)).astype(np.float32) for n in limits]
        kept = [int(n) for n in self.controller.trim(list(requests.values()), confidence)]
        if len(kept) != len(limits) or any(not 0 <= n <= k for n, k in zip(kept, limits, strict=False)):
            self.problems.append(f"step {step}: keeps {kept} of {limits} drafts")
            return limits
        return kept

    def _end(self, names: list[str]) -> None:
        if isinstance(self.controller, ForgetsRequests):
            self.controller.finished(names)


class ControllerContract(PackagingContract, promises=True):
    """The promises of a controller.

    A subclass gives the fixture `controller`, its name, and may give `options`, keys of the speculative configuration,
    and `plugins`, an unpackaged one.
    """

    page: ClassVar[str] = "docs/controllers.md"
    plugin_kind: ClassVar[Kind] = "extension"
    stage: ClassVar[int] = 2

    @pytest.fixture
    def controller(self) -> str:
        """Return the controller's name."""
        message = f"{type(self).__name__} must define a fixture `controller` that returns the name of the controller"
        raise NotImplementedError(message)

    @pytest.fixture
    def method(self, controller: str) -> str:
        """Return the same name, under which the promises of packages know it."""
        return controller

    @pytest.fixture
    def make(self, controller: str, options: Mapping[str, Any], plugins: Mapping[str, Any] | None) -> Any:
        """Return what makes a new controller."""
        registry = registry_of({**(plugins or {}), "kit": stub_plugin(Null())})
        keys = {"method": "kit", "num_speculative_tokens": K, "controller": controller}
        resolved = resolve({**keys, **options}, INFO, registry)
        return lambda: make_controller(resolved, registry)

    @foundation
    def test_limits_are_those_of_the_host_or_less(self, make: Any) -> None:
        """For each request there is one limit in 0..k, and of its drafts 0 to all are kept."""
        problems = Session(make()).run().problems
        assert not problems, "; ".join(problems[:5])

    @foundation
    def test_the_same_history_gives_the_same_limits(self, make: Any) -> None:
        """Two new controllers that see the same steps decide the same; nothing comes from a clock or from chance."""
        first, again = (Session(make()).run().limits for _ in range(2))
        differing = [step for step, pair in enumerate(zip(first, again, strict=True)) if pair[0] != pair[1]]
        assert not differing, f"the limits differ from step {differing[0]} on" if differing else ""

    def test_limits_do_not_depend_on_the_order_of_requests(self, make: Any) -> None:
        """A request gets the same limits wherever in the batch it stands."""
        first, other = Session(make()).run().limits, Session(make(), backwards=True).run().limits
        differing = [step for step, pair in enumerate(zip(first, other, strict=True)) if pair[0] != pair[1]]
        assert not differing, f"step {differing[0]}: {first[differing[0]]}, backwards {other[differing[0]]}"

    def test_it_does_without_measured_costs(self, make: Any) -> None:
        """While nothing has been measured, limits are as they must be."""
        problems = Session(make(), costs=KnownCosts(known=False)).run().problems
        assert not problems, "; ".join(problems[:5])

    def test_no_request_is_held_after_its_end(self, make: Any) -> None:
        """The controller keeps no reference to a request that ended."""
        session = Session(make())
        held = still_held(session.run, session.seen)
        assert not held, f"the controller still holds {held[:5]}"
