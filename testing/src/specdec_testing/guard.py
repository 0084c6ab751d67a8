"""The rule of the kit's test classes: a promised test may be replaced only by an expected failure with a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


def foundation(test: Test) -> Test:
    """Mark a promised test that the others rest on: it runs before them, and where it fails they are not tried.

    Foundations come first among the tests of their class, each resting on those before it, and their class comes before
    those of a higher `stage`. So a fault is reported once, by the check that is about it.
    """
    test.foundation = True  # type: ignore[attr-defined] # a mark that the plugin reads
    return test


class Contract:
    """Base of test classes whose `test_*` methods are promises.

    `class MyContract(Contract, promises=True)` states promises. In a class below it, a promised test may only be
    redefined with `@pytest.mark.xfail(reason="...", strict=True)`, in its own body or by way of a mixin, and the class
    may not skip its tests. Strict, for otherwise a test that passes, or one that fails for another cause, goes unseen.
    Anything else raises TypeError when the class is made. Further tests may be added freely.
    """

    promised: ClassVar[dict[str, Any]] = {}
    stage: ClassVar[int] = 0  # when the tests that a class promises are run, those of lower stages first

    def __init_subclass__(cls, *, promises: bool = False, **kwargs: Any) -> None:
        """Check what the new class does to the tests promised above it."""
        super().__init_subclass__(**kwargs)
        before = {name: test for base in reversed(cls.__mro__[1:]) for name, test in _promised_by(base).items()}
        for name, test in before.items():
            found = inspect.getattr_static(cls, name)
            if found is not test and not _expected_failure(found):
                message = (
                    f"{cls.__qualname__}.{name} replaces a test of the contract; only "
                    f'@pytest.mark.xfail(reason="...", strict=True) with a reason may do so'
                )
                raise TypeError(message)
        if any(mark.name in ("skip", "skipif", "xfail") for mark in _marks(vars(cls).get("pytestmark", ()))):
            message = f"{cls.__qualname__} skips a whole contract; mark single tests as expected failures, with reasons"
            raise TypeError(message)
        own = vars(cls).items() if promises else ()
        cls.promised = {name: value for name, value in own if name.startswith("test_")}

    @classmethod
    def rank_of(cls, name: str) -> tuple[int, int]:
        """Return when a promised test of this class runs: by stage, foundations first and in their order."""
        bases = [test for test, function in cls.promised.items() if getattr(function, "foundation", False)]
        return cls.stage, bases.index(name) if name in bases else len(bases)

    @classmethod
    def expected_failures(cls) -> dict[str, str]:
        """Return the promised tests that the class expects to fail, each with its reason."""
        tests = {name: inspect.getattr_static(cls, name) for base in cls.__mro__ for name in _promised_by(base)}
        found = {name: _expected_failure(test) for name, test in tests.items()}
        return {name: reason for name, reason in found.items() if reason}


def _promised_by(base: type) -> dict[str, Any]:
    promised: dict[str, Any] = vars(base).get("promised", {})
    return promised


def _expected_failure(test: Any) -> str:
    """Return the reason of a test's unconditional, strict xfail, "" if it has none."""
    for mark in _marks(getattr(test, "pytestmark", ())):
        if mark.name == "xfail" and not mark.args and mark.kwargs.get("strict") is True:
            return str(mark.kwargs.get("reason", "")).strip()
    return ""


def _marks(marks: Any) -> Iterable[Any]:
    """Return marks from one mark or a sequence of them, decorators included."""
    listed = marks if isinstance(marks, (list, tuple)) else [marks]
    return [getattr(mark, "mark", mark) for mark in listed]
