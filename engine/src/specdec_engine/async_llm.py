"""`AsyncLLM`: one engine for many callers of event loops, with vLLM's names; knows callers, not how a step is made.

A thread of its own makes the steps while anything runs, and sleeps otherwise. Callers never wait for a step in their
event loop: what they ask for goes to the thread as a command, and is carried out between two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from specdec_core.errors import RequestError
from specdec_core.metrics import SpecMetrics
from specdec_engine.llm import LLM
from specdec_engine.outputs import RequestOutput
from specdec_engine.reporting.stats import EngineState
from specdec_engine.requests.run import Run
from specdec_engine.sampling_params import SamplingParams

logger = logging.getLogger("specdec_engine")


class AsyncLLM:
    """An `LLM` for callers that await: all arguments are those of `LLM`. `AsyncLLM.over(llm)` takes a loaded one.

    `async with` closes it at the end; `close` does the same for callers without. Requests of different event loops and
    of other threads that use the `LLM` directly run in one batch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Load everything, as `LLM` does and with its errors."""
        self._take(LLM(*args, **kwargs), close=True)

    @classmethod
    def over(cls, llm: LLM) -> AsyncLLM:
        """Serve with a loaded engine, which stays the caller's: `close` leaves it open."""
        self = cls.__new__(cls)
        self._take(llm, close=False)
        return self

    def _take(self, llm: LLM, *, close: bool) -> None:
        self._llm = llm
        self._worker = _Worker(llm)
        # Also when the last reference goes, and when the interpreter ends.
        self._finish = weakref.finalize(self, _finish, self._worker, llm if close else None)

    @property
    def llm(self) -> LLM:
        """The engine underneath."""
        return self._llm

    def generate(
        self, prompt: Any, sampling_params: SamplingParams | None, request_id: str
    ) -> AsyncIterator[RequestOutput]:
        """Complete one prompt, a text or ids as for `LLM.generate`: yield snapshots, the last with `finished` True.

        A snapshot holds all ids and text so far; a slow consumer gets fewer of them, and always the last. The request
        is submitted when iteration begins. It is freed when it has finished, when it is aborted (`finish_reason`
        is then "abort"), when the task that iterates is cancelled, or when the iterator is closed or dropped. Raises
        RequestError, while iterating, for what `LLM.generate` refuses and for a `request_id` that is running; an error
        in a step is raised to every caller whose request was running, and ends these requests.
        """
        return _Answers(self, str(request_id), prompt, sampling_params)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End one request or several; they are freed when this returns. Ids that are not running are passed over."""
        names = [request_id] if isinstance(request_id, str) else [str(name) for name in request_id]
        loop, worker = asyncio.get_running_loop(), self._worker
        done = asyncio.Event()

        def command() -> None:
            for name in names:
                worker.abort(name)
            _tell(loop, done.set)

        if worker.send(command):
            await done.wait()

    def get_metrics(self) -> SpecMetrics:
        """Return the speculation counters of the engine."""
        return self._llm.get_metrics()

    def get_state(self) -> EngineState:
        """Return what the engine held when it was last measured."""
        return self._llm.get_state()

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget what earlier requests have left, between two steps; as `LLM.reset_prefix_cache`."""
        return await asyncio.to_thread(self._llm.reset_prefix_cache, reset_running_requests, reset_connector)

    async def get_tokenizer(self) -> Any:
        """Return the tokenizer in use, None without one."""
        return self._llm.tokenizer

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return self._finish.alive

    def close(self) -> None:
        """End all requests with the finish reason "abort", and the thread; waits for a step that is being made.

        Later calls of `generate` raise RequestError. In an event loop, `async with` waits without blocking it.
        """
        self._finish()

    shutdown = close

    async def __aenter__(self) -> AsyncLLM:
        """Return the engine; leaving closes it."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the engine in another thread, so that the event loop goes on."""
        await asyncio.to_thread(self.close)


class _Caller:
    """What the worker knows of one request and of the loop that waits for it; the consumer itself holds `_Answers`."""

    def __init__(self, name: str, prompt: Any, params: SamplingParams | None, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.prompt = prompt
        self.params = params
        self.run: Run | None = None
        self.box: deque[RequestOutput | BaseException] = deque()
        self.filled = asyncio.Event()
        self._loop = loop

    def put(self, item: RequestOutput | BaseException) -> None:
        """Hand a snapshot or an error over, from the worker's thread."""
        self.box.append(item)
        _tell(self._loop, self.filled.set)


class _Answers:
    """The snapshots of one request, as an async iterator that frees the request as soon as nobody holds it."""

    def __init__(self, owner: AsyncLLM, name: str, prompt: Any, params: SamplingParams | None) -> None:
        self._owner = owner  # the engine is not closed while somebody waits
        self._arguments = (name, prompt, params)
        self._caller: _Caller | None = None
        self._ended = False

    def __aiter__(self) -> _Answers:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        try:
            item = await self._next()
        except BaseException:
            self._leave()
            raise
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        self._ended = item.finished
        return item

    async def _next(self) -> RequestOutput | BaseException:
        worker = self._owner._worker
        caller = self._caller
        if caller is None:
            caller = _Caller(*self._arguments, asyncio.get_running_loop())
            worker.submit(caller)
            self._caller = caller
        while not caller.box:
            caller.filled.clear()
            if not caller.box:
                await caller.filled.wait()
        item = caller.box.popleft()
        while caller.box:
            item = caller.box.popleft()
        return item

    def _leave(self) -> None:
        """Free the request, if it was submitted and has not ended."""
        caller = self._caller
        if caller is not None and not self._ended:
            self._owner._worker.send_leave(caller)
        self._ended = True

    async def aclose(self) -> None:
        """Free the request now; iteration is over."""
        self._leave()

    def __del__(self) -> None:
        """Free the request of a consumer that has gone."""
        self._leave()


class _Worker:
    """The thread that steps, and the commands that it carries out between steps."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._gate = threading.Lock()  # held for moments, to see whether commands are still taken and to give out names
        self._open = True
        self._names: set[str] = set()
        self._running: dict[str, _Caller] = {}  # of the worker's thread alone
        self._thread = threading.Thread(target=self._work, name="specdec-async-llm", daemon=True)
        self._thread.start()

    def send(self, command: Callable[[], None]) -> bool:
        """Have a command carried out before the next step; return False after `stop`, for then nothing is left."""
        with self._gate:
            if self._open:
                self._commands.put(command)
            return self._open

    def send_leave(self, caller: _Caller) -> None:
        """Have a request ended whose consumer has gone; takes no lock, as a finalizer may call it."""
        self._commands.put(lambda: self._leave(caller))

    def submit(self, caller: _Caller) -> None:
        """Queue a request. Raises RequestError for a name that is running, and after `stop`."""
        with self._gate:
            if not self._open:
                message = "this AsyncLLM is closed; make a new one"
                raise RequestError(message)
            if caller.name in self._names:
                message = f"request_id {caller.name!r} is running already; give each request an id of its own"
                raise RequestError(message)
            self._names.add(caller.name)
            self._commands.put(lambda: self._start(caller))

    def stop(self) -> None:
        """End all requests, and the thread."""
        with self._gate:
            self._open = False
            self._commands.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while self._carry_out():
            if self._running:
                self._step()
        for name in list(self._running):
            self.abort(name)

    def _carry_out(self) -> bool:
        """Run the commands that are there, or wait for one while nothing runs; return False for the end."""
        while True:
            try:
                command = self._commands.get(block=not self._running)
            except Empty:
                return True
            if command is None:
                return False
            command()
            del command  # it would be held while the thread sleeps, and its engine with it

    def _start(self, caller: _Caller) -> None:
        try:
            caller.run = self._llm.start(caller.prompt, caller.params)
            self._running[caller.name] = caller
            if len(caller.run.groups) != 1:
                message = f"generate takes one prompt a request, got {len(caller.run.groups)}"
                raise RequestError(message)
            caller.run.groups[0].name = caller.name
        except BaseException as error:
            self._free(caller)
            caller.put(error)

    def _step(self) -> None:
        """Make a step; an error ends every request that was in it, and each caller gets it once."""
        try:
            run = next(iter(self._running.values())).run
            assert run is not None
            run.step()
        except BaseException as error:
            for caller in list(self._running.values()):
                self._free(caller)
                caller.put(error)
            return
        for caller in list(self._running.values()):
            self._show(caller)

    def _show(self, caller: _Caller) -> None:
        """Hand a snapshot over if there is news: the last one always, others if the one before has been taken."""
        run = caller.run
        assert run is not None
        if run.finished:
            output = run.news_of(0)
            self._free(caller)
        else:
            output = None if caller.box else run.news_of(0)
        if output is not None:
            caller.put(output)

    def abort(self, name: str) -> None:
        """End a request, and show its consumer how far it came; in the worker's thread."""
        caller = self._running.get(name)
        if caller is not None and caller.run is not None:
            caller.run.abort(0)
            self._show(caller)

    def _leave(self, caller: _Caller) -> None:
        if self._running.get(caller.name) is caller:
            self._free(caller)

    def _free(self, caller: _Caller) -> None:
        """Forget a request, and give back what it holds if it has not ended."""
        try:
            if caller.run is not None:
                caller.run.__exit__()
        except Exception:  # of a proposer, with `strict`; the request itself has ended by then
            logger.exception("request %s was ended, and then its proposer raised an error", caller.name)
        self._running.pop(caller.name, None)
        with self._gate:
            self._names.discard(caller.name)


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have an event loop call something, unless it has been closed: then nobody waits there."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _finish(worker: _Worker, llm: LLM | None) -> None:
    """Stop the worker, and close the engine if it is ours."""
    worker.stop()
    if llm is not None:
        llm.close()
