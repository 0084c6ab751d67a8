"""Pages of a KV arena that several segments hold: found by key, counted, kept while there is room, never written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_nn.cache.arena import KVArena, Segment

CPU = torch.device("cpu")
PAGE = 4


def keys(text: str) -> list[bytes]:
    """One key a letter, each of all letters up to it."""
    return [text[: i + 1].encode() for i in range(len(text))]


def published(arena: KVArena, text: str) -> Segment:
    """Return a segment of one page a letter, all of them published."""
    segment = Segment()
    assert arena.reserve(segment, PAGE * len(text))
    arena.publish(segment, keys(text))
    return segment


def test_the_longest_run_of_known_keys_is_found_and_taken_over() -> None:
    arena, other = KVArena(40, CPU, PAGE), Segment()
    first = published(arena, "abc")
    assert [arena.find(keys(text)) for text in ("abc", "abcd", "abx", "xbc", "")] == [3, 3, 2, 0, 0]
    arena.take(other, keys("ab"))
    assert arena.reserve(other, 4 * PAGE)
    assert other.pages[:2] == first.pages[:2] and other.fixed == 2
    assert not set(other.pages[2:]) & set(first.pages)
    assert arena.pages_in_use == 5, "shared pages are there once"
    arena.check_integrity([first, other])


def test_pages_that_were_reserved_and_not_written_make_room_for_those_taken_over() -> None:
    arena, late = KVArena(40, CPU, PAGE), Segment()
    assert arena.reserve(late, 4 * PAGE)
    own = list(late.pages)
    first = published(arena, "ab")
    arena.take(late, keys("ab"))
    assert late.pages == [*first.pages, *own[2:]]
    assert arena.pages_in_use == 4
    arena.check_integrity([first, late])


def test_a_page_that_others_may_hold_is_not_written() -> None:
    arena = KVArena(40, CPU, PAGE)
    segment = published(arena, "ab")
    assert arena.reserve(segment, 3 * PAGE)
    for start in (0, PAGE, 2 * PAGE - 1):
        with pytest.raises(ValueError, match=f"row {start} is in the first 2 pages, which are read only"):
            arena.slots(segment, start, 1)
        assert arena.slots(segment, start, 1, written=False)[0] == segment.pages[start // PAGE] * PAGE + start % PAGE
    assert len(arena.slots(segment, 2 * PAGE, PAGE)) == PAGE


def test_published_pages_stay_until_their_room_is_needed_and_the_oldest_ends_go_first() -> None:
    arena, new = KVArena(6 * PAGE, CPU, PAGE), Segment()
    for text in ("abc", "xy"):
        arena.release(published(arena, text))
    assert (arena.pages_in_use, arena.pages_published) == (0, 5)
    left = []
    for pages in range(1, 7):
        assert arena.reserve(new, pages * PAGE)
        left.append((arena.find(keys("abc")), arena.find(keys("xy"))))
        arena.check_integrity([new])
    assert left == [(3, 2), (2, 2), (1, 2), (0, 2), (0, 1), (0, 0)]
    assert not arena.reserve(new, 7 * PAGE)


def test_what_is_used_again_is_young_again() -> None:
    arena, again, new = KVArena(4 * PAGE, CPU, PAGE), Segment(), Segment()
    for text in ("ab", "xy"):
        arena.release(published(arena, text))
    arena.take(again, keys("ab"))
    arena.release(again)
    assert arena.reserve(new, 2 * PAGE)
    assert (arena.find(keys("ab")), arena.find(keys("xy"))) == (2, 0)


def test_a_page_that_is_held_is_not_taken_for_something_else() -> None:
    arena, holder, new = KVArena(3 * PAGE, CPU, PAGE), Segment(), Segment()
    first = published(arena, "ab")
    arena.take(holder, keys("ab"))
    arena.release(first)
    assert not arena.reserve(new, 2 * PAGE), "one page is free, and two are held"
    assert new.pages == []
    arena.release(holder)
    assert arena.reserve(new, 2 * PAGE)
    arena.check_integrity([new])


def test_who_computes_a_known_page_again_keeps_it_and_the_known_one_is_found() -> None:
    arena, third = KVArena(40, CPU, PAGE), Segment()
    first, second = published(arena, "a"), published(arena, "a")
    assert first.pages != second.pages and second.fixed == 1
    arena.release(second)
    arena.check_integrity([first])
    arena.take(third, keys("a"))
    assert third.pages == first.pages


def test_nothing_is_found_after_forgetting_and_all_pages_come_back() -> None:
    arena = KVArena(5 * PAGE, CPU, PAGE)
    held = published(arena, "ab")
    arena.release(published(arena, "xy"))
    arena.forget()
    assert (arena.find(keys("ab")), arena.find(keys("xy")), arena.pages_published) == (0, 0, 0)
    arena.check_integrity([held])
    arena.release(held)
    assert arena.pages_in_use == 0 and arena.reserve(Segment(), 5 * PAGE)


def test_the_check_of_an_arena_sees_a_shared_page_that_could_be_written_and_a_wrong_count() -> None:
    arena, other = KVArena(40, CPU, PAGE), Segment()
    first = published(arena, "ab")
    arena.take(other, keys("ab"))
    with pytest.raises(AssertionError, match="miscounted"):
        arena.check_integrity([first])
    other.fixed = 1
    with pytest.raises(AssertionError, match="a shared KV page can be written"):
        arena.check_integrity([first, other])


def test_rows_beside_keys_and_values_lie_in_the_same_slots_and_count_as_memory() -> None:
    arena = KVArena(5 * PAGE, CPU, PAGE)
    assert arena.kept_beside("hidden") is None
    example = torch.zeros(3, 2, 7)
    rows = arena.beside("hidden", example)
    assert rows.shape == (5 * PAGE, 2, 7) and arena.beside("hidden", example) is rows
    assert arena.memory_bytes() == rows.numel() * 4


def test_any_order_of_calls_keeps_count_of_every_page() -> None:
    rng, arena = np.random.default_rng(0), KVArena(12 * PAGE, CPU, PAGE)
    held: list[Segment] = []
    for _ in range(2000):
        text = "".join(rng.choice(list("ab"), int(rng.integers(1, 5))))
        choice = rng.integers(0, 5)
        if choice < 3:
            segment = Segment()
            arena.take(segment, keys(text)[: arena.find(keys(text))])
            if arena.reserve(segment, PAGE * len(text) + 1):
                arena.publish(segment, keys(text))
                held.append(segment)
            else:
                arena.release(segment)
        elif held and (choice == 3 or rng.random() < 0.9):
            arena.release(held.pop(int(rng.integers(len(held)))))
        elif rng.random() < 0.1:
            arena.forget()
        arena.check_integrity(held)
