"""Threads that use one model take turns, in the order in which they asked; parallel kernels survive any threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

from specdec_nn.turns import TurnLock, lock_of
from specdec_testing.targets import tiny_target

PAIR = """
import threading
import numpy as np
import torch
from specdec_nn.ops.race.numba import race
from specdec_nn.ops.truncate.reference import Truncation
from specdec_nn.ops.truncate.numba import truncate
from specdec_core.noise import Noise

rows = 24
noise = Noise(np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
asked = Truncation(np.ones(rows, np.float32), np.zeros(rows), np.full(rows, 50), np.full(rows, 0.9))
logits = torch.randn(rows, 20000, generator=torch.Generator().manual_seed(0))

def draw():
    return race(torch.softmax(truncate(logits, asked), -1), noise, 0).tolist()

want, found = draw(), []
threads = [threading.Thread(target=lambda: found.extend(draw() for _ in range(40))) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 160 and all(ids == want for ids in found)
"""


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["workqueue", "default"])
def test_parallel_kernels_run_in_several_threads_on_any_threading_layer_of_numba(layer: str) -> None:
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    ended = subprocess.run([sys.executable, "-c", PAIR], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_lock_goes_to_whoever_has_waited_longest() -> None:
    lock, order = TurnLock(), []

    def once(name: str) -> None:
        with lock:
            order.append(name)

    lock.acquire()
    threads = []
    for name in ("second", "third"):
        threads.append(threading.Thread(target=once, args=(name,)))
        threads[-1].start()
        while len(lock._waiting) < len(threads):
            pass
    lock.release()
    once("last")  # a lock without an order would give this thread the next turn
    for thread in threads:
        thread.join()
    assert order == ["second", "third", "last"]


def test_a_thread_may_take_its_lock_again_and_others_get_it_after_the_last_release() -> None:
    lock, entered = TurnLock(), threading.Event()

    def other() -> None:
        with lock:
            entered.set()

    thread = threading.Thread(target=other)
    with lock, lock:
        thread.start()
        while not lock._waiting:
            pass
        with lock:
            pass
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()
    with pytest.raises(RuntimeError, match="does not hold it"):
        lock.release()


def test_models_have_locks_of_their_own_unless_they_share_a_configuration() -> None:
    one, other = tiny_target("llama"), tiny_target("llama")
    wrapped = type(one)(one.config)
    lock = lock_of(one)
    assert lock_of(one) is lock
    assert lock_of(one.model) is lock, "a part of the model runs on the same modules"
    assert lock_of(wrapped) is lock, "the attention setting is in the configuration"
    assert lock_of(other) is not lock


def test_a_lock_goes_with_its_last_holder() -> None:
    model = tiny_target("llama")
    gone = weakref.ref(lock_of(model))
    gc.collect()
    assert gone() is None
