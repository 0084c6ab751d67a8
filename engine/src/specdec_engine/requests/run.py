"""The requests of one call of an engine, from their submission to their end; knows neither texts nor parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from specdec_engine.decoding.step import Stepper
from specdec_engine.outputs import RequestOutput
from specdec_engine.reporting.stats import EngineStats
from specdec_engine.requests.group import Group
from specdec_engine.requests.request import Request
from specdec_nn.turns import TurnLock


class Run:
    """A context; leaving it aborts what has not finished, and measures what the engine holds then.

    Runs of several threads share the engine: a step of any of them advances the requests of all, and each run shows all
    gains of its own ones.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        step: Callable[[], list[Request]],
        stepper: Stepper,
        stats: EngineStats,
        lock: TurnLock,
    ) -> None:
        """Take the groups that were submitted, in order of the prompts; `step` advances the engine."""
        self.groups = groups
        self.step = step
        self._stepper = stepper
        self._stats = stats
        self._lock = lock

    @property
    def finished(self) -> bool:
        """Whether all prompts have ended."""
        return all(group.finished for group in self.groups)

    def gains(self) -> Iterator[tuple[int, list[int]]]:
        """Step to the end; yield the index of a prompt and the ids that its first sample has gained, each once."""
        seen = [0] * len(self.groups)
        for _ in self._rounds():
            for index, group in enumerate(self.groups):
                request = group.requests[0]
                new = request.tokens[request.prompt_len + seen[index] :]
                if len(new):
                    seen[index] += len(new)
                    yield index, new.tolist()

    def news(self) -> Iterator[RequestOutput]:
        """Step to the end; yield a snapshot of each prompt that gained ids or ended since its last one."""
        for _ in self._rounds():
            for index in range(len(self.groups)):
                output = self.news_of(index)
                if output is not None:
                    yield output

    def news_of(self, index: int) -> RequestOutput | None:
        """Return a snapshot of a prompt if it gained ids or ended since the last one, else None; makes no step."""
        with self._lock:
            return self.groups[index].news()

    def _rounds(self) -> Iterator[None]:
        """Yield before the first step and after each; others may step meanwhile, so the last look is after the end."""
        ended = False
        while not ended:
            ended = self.finished
            yield
            if not ended:
                self.step()

    def outputs(self) -> list[RequestOutput]:
        """Return how far each prompt has come."""
        with self._lock:
            return [group.output() for group in self.groups]

    def abort(self, index: int) -> None:
        """End a prompt now, if it has not ended."""
        with self._lock:
            for request in self.groups[index].requests:
                if not request.finished:
                    self._stepper.end(request, "abort")

    def __enter__(self) -> Run:
        """Return the run."""
        return self

    def __exit__(self, *error: object) -> None:
        """Abort what is left."""
        with self._lock:
            for index in range(len(self.groups)):
                self.abort(index)
            self._stats.measure()
