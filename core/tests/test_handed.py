"""What plugins are handed cannot be written into and has nothing of the host's; nothing but an error comes back."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from specdec_core.draft import BatchView, Rows
from specdec_core.errors import PluginCallError
from specdec_core.host.handed import HandedRequest, KnownIds, OnlyErrors, read_only
from specdec_core.noise import Noise


def ids(*values):
    return np.array(values, np.int32)


@pytest.fixture
def batch():
    rows = Rows(ids(0, 0), ids(0, 1), ids(5, 6), torch.zeros(2, 3), None, np.array([False]))
    noise = Noise(np.array([7], np.uint64), ids(3), ids(0))
    request = HandedRequest("a", 0, 2, KnownIds(ids(4, 5, 6)), None, None)
    return BatchView([request], ids(2), np.array([True]), ids(4), noise, rows)


def arrays(batch):
    noise, rows = batch.noise, batch.rows
    return [
        *(batch.run_len, batch.newest_known, batch.max_draft, noise.keys, noise.positions, noise.seq_index),
        *(rows.request, rows.positions, rows.tokens, rows.gap, batch.request(0).tokens),
    ]


def test_no_array_can_be_written_into_nor_made_writable(batch):
    for array in arrays(batch):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_no_field_can_be_replaced(batch):
    with pytest.raises(FrozenInstanceError):
        batch.max_draft = ids(10_000)
    with pytest.raises(FrozenInstanceError):
        batch.rows.gap = np.array([True])
    with pytest.raises(AttributeError):
        batch.request(0).tokens = ids(1)
    with pytest.raises(AttributeError):
        batch.request(0).max_draft = 10_000
    with pytest.raises(AttributeError):
        batch.requests.clear()


def test_what_the_host_goes_on_to_use_is_not_what_was_handed_out():
    own = ids(4)
    frozen = read_only(own)
    own[0] = 9
    assert (frozen.tolist(), own.flags.writeable) == ([4], True)
    assert read_only(np.empty((0, 2), np.int32)).shape == (0, 2)
    assert read_only(np.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_known_ids_grow_in_view_of_whoever_was_handed_them():
    known = KnownIds(ids(1, 2))
    request = HandedRequest("a", 0, 2, known, None, None)
    before = request.tokens
    for start in range(3, 300, 3):
        known.append(ids(start, start + 1, start + 2))
    assert request.tokens.tolist() == list(range(1, 300))
    assert before.tolist() == [1, 2]


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseException("odd")])
def test_what_would_end_the_process_becomes_an_error_that_names_the_plugin(error):
    with pytest.raises(PluginCallError, match=rf"^method 'm' raised {type(error).__name__}.* in propose") as raised:
        with OnlyErrors("method 'm'", "propose"):
            raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("wrong")])
def test_interrupts_and_errors_pass_through(error):
    with pytest.raises(type(error)) as raised, OnlyErrors("method 'm'", "propose"):
        raise error
    assert raised.value is error


def test_what_is_a_copy_already_is_not_copied_again_and_what_could_still_be_written_is():
    source = np.arange(6, dtype=np.int32)
    once = read_only(source)
    assert read_only(once) is once
    part = once[2:5]
    assert read_only(part) is part
    source.flags.writeable = False  # its owner may make it writable again
    again = read_only(source)
    source.flags.writeable = True
    source[0] = 99
    assert once[0] == again[0] == 0
    assert np.array_equal(read_only(once.reshape(2, 3)[:, :2]), [[0, 1], [3, 4]])
