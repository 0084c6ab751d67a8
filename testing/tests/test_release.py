"""What is still referred to is found, whoever holds it and since when; dead cycles are none, however old."""

import weakref

from specdec_testing.release import still_held


class Box:
    """Something to refer to; `other` may be itself."""

    other = None


def held(keep):
    """Make three boxes, hand the second one to `keep`, and return those that are still referred to."""
    seen = {}

    def run():
        boxes = [Box() for _ in range(3)]
        seen.update({name: weakref.ref(box) for name, box in zip("abc", boxes, strict=True)})
        keep(boxes[1])

    return still_held(run, seen)


def test_nothing_is_held_by_nobody():
    assert held(lambda box: None) == []


def test_what_is_kept_is_found():
    older = []
    assert held(older.append) == ["b"]


def test_a_dead_cycle_holds_nothing():
    def keep(box):
        cycle = Box()
        cycle.other = (cycle, box)

    assert held(keep) == []


def test_an_older_cycle_that_dies_meanwhile_holds_nothing():
    owners = [Box()]
    owners[0].other = [owners[0]]

    def keep(box):
        owners.pop().other.append(box)

    assert held(keep) == []
