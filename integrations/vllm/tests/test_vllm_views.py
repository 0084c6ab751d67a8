"""Requests are told apart while their rows move, wait and come back; knows no vLLM, only its tables."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_vllm.views import ByContent, ByName, Names, Row, sampled_rows

WIDTH, PLACES = 400, 6


class Host:
    """Tables as vLLM's: requests sit in rows, rows move, a waiting request has no row; `truth` knows who is who."""

    def __init__(self, seed, same_prompts):
        self.draw = np.random.default_rng(seed)
        self.same = same_prompts
        self.rows: list[str] = []
        self.waiting: list[str] = []
        self.truth: dict[str, list[int]] = {}
        self.prompt_lens: dict[str, int] = {}
        self.ended: list[str] = []

    def admit(self):
        """A new request, or one that waits, takes the last row."""
        if self.waiting and self.draw.random() < 0.6:
            name = self.waiting.pop(0)
        else:
            name = f"r{len(self.truth)}"
            size = int(self.draw.integers(1, 90))
            prompt = [7] * size if self.same else self.draw.integers(0, 4, size).tolist()
            self.truth[name], self.prompt_lens[name] = prompt, size
        self.rows.append(name)

    def leave(self):
        """A request ends or is preempted, and the last row moves into its place."""
        place = int(self.draw.integers(len(self.rows)))
        name, self.rows[place] = self.rows[place], self.rows[-1]
        self.rows.pop()
        (self.ended if self.draw.random() < 0.5 else self.waiting).append(name)

    def step(self):
        """Change the batch; then all rows but some inside their prompts sample. Returns arguments of `sampled_rows`."""
        while len(self.rows) < PLACES and (not self.rows or self.draw.random() < 0.5):
            self.admit()
        if len(self.rows) > 1 and self.draw.random() < 0.4:
            self.leave()
        if len(self.rows) > 1 and self.draw.random() < 0.3:
            i, j = self.draw.choice(len(self.rows), 2, replace=False)
            self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
        table, sampled = np.full((PLACES, WIDTH), -7, np.int32), []
        for place, name in enumerate(self.rows):
            new = [] if self.draw.random() < 0.1 else self.draw.integers(0, 4, int(self.draw.integers(1, 5))).tolist()
            self.truth[name] += new
            sampled.append(new)
            table[place, : len(self.truth[name])] = self.truth[name]
            table[place, len(self.truth[name]) : len(self.truth[name]) + 3] = 9  # what is left of last step's drafts
        return sampled, np.array([len(self.truth[n]) for n in self.rows]), table


@pytest.mark.parametrize("same_prompts", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_by_content_each_view_has_its_rows_ids_and_stays_one_request(seed, same_prompts):
    """Ids are few, so that equal beginnings are common; views may only be mixed up while they are equal."""
    host, known = Host(seed, same_prompts), ByContent(most=8, patience=10**6)
    followed: dict[str, object] = {}
    done = []
    switched = 0
    for _ in range(150):
        sampled, lengths, table = host.step()
        before = {name: len(ids) for name, ids in host.truth.items()}
        rows = sampled_rows(sampled, lengths, table)
        assert [row.place for row in rows] == [i for i, ids in enumerate(sampled) if ids]
        views, gone = known.update(rows)
        done += gone
        assert len(set(views)) == len(views)
        for row, view in zip(rows, views, strict=True):
            name = host.rows[row.place]
            assert view.tokens.tolist() == host.truth[name][: before[name]]
            assert not view.tokens.flags.writeable
            if name in followed and followed[name] is not view:
                switched += 1
            followed[name] = view
            assert not same_prompts or view.prompt_len >= 1
        assert not set(done) & set(views)
    kept = known.drain()
    assert len(set(done)) == len(done) and not set(done) & set(kept)
    # A few are lost: more wait than may, or two were equal when rows were exchanged.
    assert switched <= len(host.truth) // 2
    assert known.drain() == []


def test_by_content_a_request_that_waited_is_the_same_one_and_one_that_stays_away_is_done():
    known = ByContent(most=4, patience=5)
    table = np.zeros((2, 20), np.int32)
    table[0, :5] = [1, 2, 3, 4, 5]
    table[1, :5] = [1, 2, 3, 4, 6]
    (a, b), _ = known.update([Row(0, table[0, :5], 1), Row(1, table[1, :5], 1)])
    assert (a.prompt_len, a.id != b.id) == (4, True)
    table[0, 5] = 9
    for _ in range(3):  # b waits, its row is empty
        assert known.update([]) == ([], [])
    table[0, :6] = [1, 2, 3, 4, 6, 8]
    (back,), gone = known.update([Row(0, table[0, :6], 1)])  # where a was
    assert back is b and gone == [] and b.tokens.tolist() == [1, 2, 3, 4, 6, 8]
    gone = [request for _ in range(6) for request in known.update([])[1]]
    assert gone == [a, b]


def test_by_content_more_waiting_requests_than_can_run_are_done_the_oldest_first():
    known = ByContent(most=2)
    rows = [Row(i, np.array([i, i, 5], np.int32), 1) for i in range(4)]
    views, _ = known.update(rows)
    assert known.update([]) == ([], views[:2])


def test_by_content_an_identical_prompt_after_an_answer_is_a_new_request():
    known = ByContent(most=2)
    prompt = np.array([4, 4, 4, 1, 2], np.int32)
    ((first,), _), ((second,), _) = known.update([Row(0, prompt[:4], 1)]), known.update([Row(0, prompt[:4], 1)])
    assert first is not second and second.prompt_len == 3


@pytest.mark.parametrize("seed", range(6))
def test_by_name_each_view_is_its_requests_for_ever_and_ends_once(seed):
    host = Host(seed, same_prompts=False)
    welcomed = []

    def names():
        alive = [*host.rows, *host.waiting]
        lens = np.array([host.prompt_lens[name] for name in host.rows])
        return Names(host.rows, lens, alive, {name: Params(name) for name in alive})

    known = ByName(names, welcomed.append)
    followed, done = {}, []
    for _ in range(150):
        sampled, lengths, table = host.step()
        rows = sampled_rows(sampled, lengths, table)
        views, gone = known.update(rows)
        done += [view.id for view in gone]
        for row, view in zip(rows, views, strict=True):
            name = host.rows[row.place]
            assert followed.setdefault(name, view) is view
            assert (view.id, view.prompt_len) == (name, host.prompt_lens[name])
            assert view.sampling_params == name
            assert view.tokens.tolist() == host.truth[name]
    assert sorted(done) == sorted(name for name in host.ended if name in followed)
    assert [view.id for view in welcomed] == list(followed)
    assert {view.id for view in known.drain()} == followed.keys() - set(done)


class Params:
    """Stands for vLLM's state of a request."""

    def __init__(self, name):
        self.sampling_params = name


def test_by_name_a_name_that_is_used_again_for_another_text_is_another_request():
    row = np.arange(9, dtype=np.int32)
    known = ByName(lambda: Names(["x"], np.array([3]), ["x"], {}), lambda request: None)
    (first,), _ = known.update([Row(0, row[:5], 1)])
    (second,), gone = known.update([Row(0, row[1:8], 1)])
    assert first is not second and gone == [first] and second.tokens.tolist() == row[1:8].tolist()
