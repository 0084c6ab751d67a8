"""A promised test can only be replaced by an expected failure that gives its reason."""

import pytest

from specdec_testing.guard import Contract


class Promise(Contract, promises=True):
    def test_a(self):
        pass

    def test_b(self):
        pass


class More(Promise, promises=True):
    def test_c(self):
        pass


def test_further_tests_may_be_added():
    class Mine(More):
        def test_mine(self):
            pass

    assert Mine.expected_failures() == {}


def test_an_expected_failure_with_a_reason_may_replace_a_test():
    class Mine(More):
        @pytest.mark.xfail(reason="rows share a cache on purpose", strict=True)
        def test_a(self):
            pass

    assert Mine.expected_failures() == {"test_a": "rows share a cache on purpose"}


@pytest.mark.parametrize(
    "replacement",
    [
        lambda self: None,
        None,
        pytest.mark.xfail(strict=True)(lambda self: None),
        pytest.mark.xfail(reason="  ", strict=True)(lambda self: None),
        pytest.mark.xfail(True, reason="conditional", strict=True)(lambda self: None),
        pytest.mark.xfail(reason="passing would go unseen")(lambda self: None),
        pytest.mark.xfail(reason="passing would go unseen", strict=False)(lambda self: None),
        pytest.mark.skip(reason="slow")(lambda self: None),
    ],
)
@pytest.mark.parametrize("name", ["test_a", "test_c"])
def test_any_other_replacement_is_refused(name, replacement):
    with pytest.raises(TypeError, match=name):
        type("Mine", (More,), {name: replacement})


def test_a_mixin_cannot_replace_a_test_either():
    class Mixin:
        def test_b(self):
            pass

    with pytest.raises(TypeError, match="test_b"):
        type("Mine", (Mixin, More), {})


def test_a_grandchild_is_held_to_the_promise_as_well():
    class Mine(More):
        pass

    with pytest.raises(TypeError, match="test_a"):
        type("Deeper", (Mine,), {"test_a": lambda self: None})


def test_stating_new_promises_gives_no_right_to_drop_old_ones():
    with pytest.raises(TypeError, match="test_a"):
        type(Contract)("Mine", (Promise,), {"test_a": lambda self: None}, promises=True)


def test_a_class_cannot_be_skipped_as_a_whole():
    with pytest.raises(TypeError, match="whole contract"):
        type("Mine", (Promise,), {"pytestmark": pytest.mark.skip(reason="slow")})
