"""Threads that take turns: one lock a model, given out in the order in which it was asked for; knows no engine.

A model can run one forward at a time: its attention finds the batch through the model's own modules, and its linear
layers are exchanged meanwhile. Whatever runs a model, or changes what runs on it, holds the model's lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final
from weakref import WeakValueDictionary

from torch import nn


class TurnLock:
    """A reentrant lock that goes to whoever has waited longest.

    A `threading.RLock` goes to whoever is quickest, which in a loop of steps is the thread that has just released it.
    """

    def __init__(self) -> None:
        """Belong to nobody."""
        self._gate = threading.Lock()  # held for moments
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner: int | None = None
        self._depth = 0
        self.covers: tuple[Any, ...] = ()  # kept alive as long as the lock: no other object gets their addresses

    def acquire(self) -> None:
        """Wait for the turn of the calling thread, or go one level deeper if it has it."""
        me, turn = threading.get_ident(), threading.Lock()
        place = (me, turn)
        with self._gate:
            if self._owner is None or self._owner == me:
                self._owner = me
                self._depth += 1
                return
            turn.acquire()
            self._waiting.append(place)
        try:
            turn.acquire()  # until `release` hands the lock over
        except BaseException:  # an interrupt from the keyboard
            self._leave(place)
            raise

    def release(self) -> None:
        """Go one level up; from the outermost one, hand the lock to the next thread in the queue."""
        if self._owner != threading.get_ident():
            message = "the lock of a model was released by a thread that does not hold it"
            raise RuntimeError(message)
        with self._gate:
            self._depth -= 1
            if self._depth == 0:
                self._hand_over()

    def _hand_over(self) -> None:
        self._owner = None
        if self._waiting:
            self._owner, turn = self._waiting.popleft()
            self._depth = 1
            turn.release()

    def _leave(self, place: tuple[int, threading.Lock]) -> None:
        with self._gate:
            if place in self._waiting:
                self._waiting.remove(place)
            else:  # the lock had been handed over already
                self._depth = 0
                self._hand_over()

    def __enter__(self) -> TurnLock:
        """Take the lock."""
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Release it."""
        self.release()


_LOCKS: Final[WeakValueDictionary[int, TurnLock]] = WeakValueDictionary()
_GATE: Final = threading.Lock()


def lock_of(model: nn.Module) -> TurnLock:
    """Return the lock of a transformers model; callers keep it as long as they use the model.

    Models that share a configuration object, as a wrapper and the model in it do, share the lock, since the attention
    setting is in the configuration.
    """
    configs = [module.config for module in model.modules() if hasattr(getattr(module, "config", None), "to_dict")]
    covers: dict[int, Any] = {id(item): item for item in configs or [model]}
    with _GATE:
        known = [lock for key in covers if (lock := _LOCKS.get(key)) is not None]
        lock = known[0] if known else TurnLock()
        lock.covers = (*lock.covers, *(value for key, value in covers.items() if _LOCKS.get(key) is not lock))
        for key in covers:
            _LOCKS.setdefault(key, lock)
    return lock


_REGIONS: Final = threading.Lock()
_layer_is_safe = False


def one_at_a_time(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled parallel kernel that several threads may call, whatever threads numba has found to run on.

    With numba's own threads (the layer `workqueue`, where there is neither OpenMP nor TBB) a second parallel loop ends
    the process, so loops wait for each other there.
    """

    def call(*arguments: Any) -> Any:
        if _layer_is_safe:
            return kernel(*arguments)
        with _REGIONS:
            result = kernel(*arguments)
            _look_at_layer()
        return result

    return call


def _look_at_layer() -> None:
    """Note whether numba's threads may be called from several threads at once; known after the first loop."""
    global _layer_is_safe
    from numba import threading_layer

    try:
        _layer_is_safe = threading_layer() != "workqueue"
    except ValueError:  # no loop has run yet
        _layer_is_safe = False
