"""What every backend of an op promises, as a test class: subclass it, name the op, give some calls, run pytest."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from specdec_core.errors import PluginError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.importing import import_object
from specdec_core.registry.kernels import REFERENCE, TRITON
from specdec_testing.comparing import difference, frozen
from specdec_testing.guard import Contract, foundation

Kernel = Callable[..., Any]


class KernelContract(Contract, promises=True):
    """The promises of the backends of one op: they do what its reference does, and nothing else.

    A subclass gives two fixtures: `op`, the part of the entry points' names before the dot, and `cases`, a sequence of
    calls, each a tuple of arguments. All backends that are installed and can run here are tried; those of Triton need
    a GPU, or its interpreter.

    tolerance  how far numbers in floating point may be from the reference's, absolute or relative; 0 = equal
    writes     places of arguments that the op writes into; they count as a part of what it returns
    """

    page: ClassVar[str] = "docs/kernels.md"
    tolerance: ClassVar[float] = 0.0
    writes: ClassVar[Sequence[int]] = ()

    @pytest.fixture
    def op(self) -> str:
        """Return the name of the op."""
        message = f"{type(self).__name__} must define a fixture `op` that returns the name of the op"
        raise NotImplementedError(message)

    @pytest.fixture
    def cases(self) -> Sequence[Sequence[Any]]:
        """Return calls of the op: a tuple of arguments each."""
        message = f"{type(self).__name__} must define a fixture `cases` that returns tuples of arguments"
        raise NotImplementedError(message)

    @pytest.fixture
    def backends(self, op: str) -> Mapping[str, Kernel]:
        """Return the backends of the op that can run here, by name; a library that is not installed leaves one out."""
        return backends_of(op)

    def call(self, kernel: Kernel, arguments: Sequence[Any]) -> Any:
        """Return what a kernel makes of one case. For ops that are more than one call to override."""
        return kernel(*arguments)

    @foundation
    def test_an_op_has_a_reference(self, op: str, backends: Mapping[str, Kernel]) -> None:
        """The op has an entry point OP.reference, which is its definition, and at least one other backend runs here."""
        assert REFERENCE in backends, f"no entry point {op}.{REFERENCE} is installed; there are {sorted(backends)}"
        assert len(backends) > 1, f"{op} has no other backend that runs here, so nothing is compared"

    @foundation
    def test_backends_take_the_arguments_of_the_reference(self, op: str, backends: Mapping[str, Kernel]) -> None:
        """Every backend has the same parameters in the same order."""
        expected = _parameters(backends[REFERENCE])
        for name, kernel in backends.items():
            assert _parameters(kernel) == expected, f"{op}.{name} takes {_parameters(kernel)}, expected {expected}"

    def test_backends_return_what_the_reference_returns(
        self, op: str, cases: Sequence[Sequence[Any]], backends: Mapping[str, Kernel]
    ) -> None:
        """On every case, each backend returns and writes what the reference does, up to the tolerance."""
        assert cases, "there are no cases, so nothing is compared"
        for number, case in enumerate(cases):
            expected = self._run(backends[REFERENCE], case)
            for name, kernel in backends.items():
                found = difference(self._run(kernel, case), expected, self.tolerance)
                assert found is None, f"{op}.{name}, case {number}: {found}"

    def test_a_call_depends_on_its_arguments_alone(
        self, op: str, cases: Sequence[Sequence[Any]], backends: Mapping[str, Kernel]
    ) -> None:
        """The same call returns the same again, bit for bit, after all the others."""
        for name, kernel in backends.items():
            first = [self._run(kernel, case) for case in cases]
            again = [self._run(kernel, case) for case in reversed(cases)]
            found = difference(again[::-1], first, place="the second result")
            assert found is None, f"{op}.{name}: {found}"

    def test_arguments_are_left_alone(
        self, op: str, cases: Sequence[Sequence[Any]], backends: Mapping[str, Kernel]
    ) -> None:
        """Arguments that the op does not write into are as before, and arrays of them may be read-only."""
        for name, kernel in backends.items():
            for number, case in enumerate(cases):
                given = self._given(case)
                self.call(kernel, given)
                for place, (before, after) in enumerate(zip(case, given, strict=True)):
                    found = None if place in self.writes else difference(after, before, place=f"argument {place}")
                    assert found is None, f"{op}.{name}, case {number} writes into its arguments: {found}"

    def _given(self, case: Sequence[Any]) -> list[Any]:
        """Return copies of the arguments; those that the op does not write into are read-only where they can be."""
        given = [frozen(argument) for argument in case]
        for place in self.writes:
            given[place] = given[place].copy() if hasattr(given[place], "copy") else given[place]
        return given

    def _run(self, kernel: Kernel, case: Sequence[Any]) -> Any:
        """Return what a call returns and writes."""
        given = self._given(case)
        return [self.call(kernel, given), [given[place] for place in self.writes]]


def backends_of(op: str) -> dict[str, Kernel]:
    """Return the installed backends of an op that can run on this machine, by name, the reference first."""
    found: dict[str, Kernel] = {}
    for record in Catalog.discover().of_kind("kernel"):
        name, _, backend = record.name.rpartition(".")
        if name != op or (backend == TRITON and not _triton_runs()):
            continue
        try:
            found[backend] = import_object(record)
        except PluginError as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
    return dict(sorted(found.items(), key=lambda pair: pair[0] != REFERENCE))


def _triton_runs() -> bool:
    return torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


def _parameters(kernel: Kernel) -> list[str]:
    return list(inspect.signature(getattr(kernel, "py_func", kernel)).parameters)
