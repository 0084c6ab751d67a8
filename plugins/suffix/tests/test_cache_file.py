"""The cache file: what is written is read, what is not whole is refused as a whole, and writing is all or nothing."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest

from specdec_core.cli import main as cli
from specdec_core.errors import SpecdecError
from specdec_plugin_suffix import cache_file
from specdec_plugin_suffix.cache import SuffixCache

TEXTS = [("", [1, 2, 3]), ("tenant ü", [2**31 - 1, 0]), ("", [7])]


def write(path, texts=TEXTS, depth=24):
    cache_file.write(path, depth, [(name, np.asarray(ids, np.int32)) for name, ids in texts])
    return path


def signed(body):
    return body + hashlib.sha256(body).digest()


def filled(forest):
    cache = SuffixCache(8, None, forest=forest)
    for i, (name, ids) in enumerate([("", [1, 2, 3, 1, 2]), ("b", [5, 6, 7]), ("", [1, 2, 4])]):
        cache.start(i, [9], namespace=name)
        cache.extend(i, ids)
        cache.stop(i)
    return cache


def test_what_is_written_is_read(tmp_path):
    contents = cache_file.read(write(tmp_path / "file"))
    assert [(name, ids.tolist()) for name, ids in contents.texts] == TEXTS
    assert (contents.depth, contents.vocabulary) == (24, 2**31)
    assert all(ids.dtype == np.int32 for _, ids in contents.texts)
    empty = cache_file.read(write(tmp_path / "empty", []))
    assert (empty.texts, empty.vocabulary) == ([], 0)


def test_the_format_is_the_documented_one(tmp_path):
    data = write(tmp_path / "file").read_bytes()
    size = int.from_bytes(data[12:16], "little")
    assert data[:12] == b"SPDSUFFX" + (1).to_bytes(4, "little")
    description = json.loads(data[16 : 16 + size])
    assert description == {"depth": 24, "namespaces": ["", "tenant ü"], "responses": 3, "tokens": 6}
    numbers = [int.from_bytes(data[i : i + 4], "little") for i in range(16 + size, len(data) - 32, 4)]
    assert numbers == [0, 1, 0, 3, 2, 1, 1, 2, 3, 2**31 - 1, 0, 7]
    assert data[-32:] == hashlib.sha256(data[:-32]).digest()


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path, forest):
    data = write(tmp_path / "file").read_bytes()
    cache = filled(forest)
    before = cache.stats()
    for length in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(SpecdecError, match="cut"):
            cache.merge(tmp_path / "cut")
    assert cache.stats() == before


def test_a_file_with_any_byte_changed_is_refused(tmp_path):
    data = write(tmp_path / "file").read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x40
        (tmp_path / "changed").write_bytes(changed)
        with pytest.raises(SpecdecError, match="nothing of it was taken in"):
            cache_file.read(tmp_path / "changed")


@pytest.mark.parametrize(
    ("description", "numbers"),
    [
        ({"depth": 4, "namespaces": [""], "responses": 1, "tokens": 2}, [0, 3, 1, 2]),
        ({"depth": 4, "namespaces": [""], "responses": 1, "tokens": 2}, [1, 2, 1, 2]),
        ({"depth": 4, "namespaces": [""], "responses": 1, "tokens": 2}, [-1, 2, 1, 2]),
        ({"depth": 4, "namespaces": [""], "responses": 1, "tokens": 2}, [0, 2, 1, -2]),
        ({"depth": 4, "namespaces": [""], "responses": 2, "tokens": 2}, [0, 0, 2, 0, 1, 2]),
        ({"depth": 4, "namespaces": [7], "responses": 1, "tokens": 2}, [0, 2, 1, 2]),
        ({"depth": 4, "namespaces": [""], "responses": -1, "tokens": 2}, [0, 2, 1, 2]),
        ({"depth": 4, "namespaces": [""], "responses": 9, "tokens": 2}, [0, 2, 1, 2]),
        ({"depth": "four", "namespaces": [""], "responses": 1, "tokens": 2}, [0, 2, 1, 2]),
        ({"namespaces": [""], "responses": 1}, [0, 2, 1, 2]),
        ([], [0, 2, 1, 2]),
    ],
)
def test_a_file_of_somebody_else_with_a_right_checksum_is_refused_too(description, numbers, tmp_path):
    encoded = json.dumps(description).encode()
    head = b"SPDSUFFX" + np.array([1, len(encoded)], "<u4").tobytes()
    (tmp_path / "foreign").write_bytes(signed(head + encoded + np.array(numbers, "<i4").tobytes()))
    with pytest.raises(SpecdecError, match="do not fit each other"):
        cache_file.read(tmp_path / "foreign")


@pytest.mark.parametrize("size", [0, 5, 10**9])
def test_a_wrong_length_of_the_description_is_refused(size, tmp_path):
    (tmp_path / "file").write_bytes(signed(b"SPDSUFFX" + np.array([1, size], "<u4").tobytes() + b"{}" * 20))
    with pytest.raises(SpecdecError, match="do not fit each other"):
        cache_file.read(tmp_path / "file")


def test_a_newer_version_and_a_file_that_is_none_are_refused_in_words(tmp_path):
    (tmp_path / "newer").write_bytes(signed(b"SPDSUFFX" + np.array([2, 2], "<u4").tobytes() + b"{}" * 20))
    with pytest.raises(SpecdecError, match="version 2"):
        cache_file.read(tmp_path / "newer")
    (tmp_path / "none").write_bytes(b"PK" * 100)
    with pytest.raises(SpecdecError, match="no suffix cache file"):
        cache_file.read(tmp_path / "none")
    with pytest.raises(SpecdecError, match="cannot be read"):
        cache_file.read(tmp_path / "nowhere")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write(tmp_path / "file")
    before = path.read_bytes()

    def fail(*arguments):
        raise OSError("no space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(SpecdecError, match="no space left"):
                write(path, [("", [5])])
        assert path.read_bytes() == before
        assert [each.name for each in tmp_path.iterdir()] == ["file"]
    with pytest.raises(SpecdecError, match="cannot be written"):
        write(tmp_path / "nowhere" / "file")


def test_a_cache_that_is_saved_and_merged_shares_the_same(tmp_path, forest):
    cache = filled(forest)
    cache.start("running", [9], response=[4, 4])
    cache.start("silent", [9])
    cache.save(tmp_path / "file")
    other = SuffixCache(8, None, forest=forest)
    assert other.merge(tmp_path / "file") == 4
    assert other.counts() == cache.counts()
    assert other.counts("b") == cache.counts("b")
    for namespace, wanted in (("", [3]), ("b", [])):
        other.start(namespace, [0], namespace=namespace, response=[1, 2])
        assert other.speculate(namespace).tokens.tolist()[:1] == wanted


def test_merged_responses_are_the_newest_and_keep_the_limits(tmp_path, forest):
    now = [0.0]
    filled(forest).save(tmp_path / "file")
    cache = SuffixCache(8, 2, time_to_live=5, forest=forest, clock=lambda: now[0])
    cache.start("old", [9], response=[8, 8])
    assert cache.merge(tmp_path / "file") == 3
    assert cache.stats().responses == 2
    assert (8, 8) not in cache.counts()
    assert (1, 2, 3) not in cache.counts()
    assert (1, 2, 4) in cache.counts()
    now[0] = 5.0
    cache.start("new", [9])
    assert cache.counts() == {}
    short = SuffixCache(8, None, max_tokens=4, forest=forest)
    short.merge(tmp_path / "file")
    assert short.stats().tokens == 4


def test_a_cache_that_shares_nothing_refuses_a_file(tmp_path, forest):
    with pytest.raises(SpecdecError, match="shares nothing"):
        SuffixCache(8, 0, forest=forest).merge(write(tmp_path / "file"))


def test_the_command_inspects_and_merges(tmp_path, capsys):
    first, second = write(tmp_path / "first"), write(tmp_path / "second", [("b", [4, 4])], depth=30)
    assert cli.main(["suffix", "inspect", str(first), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(first), "version": 1, "depth": 24, "responses": 3, "tokens": 6, "largest_id": 2**31 - 1,
        "namespaces": {"": {"responses": 2, "tokens": 4}, "tenant ü": {"responses": 1, "tokens": 2}},
    }  # fmt: skip
    both = tmp_path / "both"
    assert cli.main(["suffix", "merge", "--out", str(both), str(first), str(second)]) == 0
    assert capsys.readouterr().out == f"{both}: 4 responses of 2 files\n"
    assert [ids.tolist() for _, ids in cache_file.read(both).texts] == [[1, 2, 3], [2**31 - 1, 0], [7], [4, 4]]
    assert cli.main(["suffix", "inspect", str(both)]) == 0
    assert "namespace 'b': 1 responses, 2 tokens" in capsys.readouterr().out
    (tmp_path / "broken").write_bytes(first.read_bytes()[:-1])
    assert cli.main(["suffix", "merge", "--out", str(both), str(first), str(tmp_path / "broken")]) == 2
    assert "checksum" in capsys.readouterr().err
    assert len(cache_file.read(both).texts) == 4
    assert cli.main(["suffix", "inspect"]) == 2
    assert "specdec suffix --help" in capsys.readouterr().err
