"""The samples of one prompt, and the snapshot of them that callers get."""

from __future__ import annotations

from specdec_core.metrics import SpecMetrics
from specdec_engine.outputs import CompletionOutput, Logprobs, RequestOutput
from specdec_engine.requests.request import Request
from specdec_engine.text.prompts import Prompt


class Group:
    """The requests of one prompt, in order of sample."""

    def __init__(self, name: str, prompt: Prompt, requests: list[Request]) -> None:
        """Start with nothing emitted."""
        self.name = name
        self.prompt = prompt
        self.requests = requests
        self._shown = (0, 0)  # ids and ends of samples that the consumer knows of

    @property
    def finished(self) -> bool:
        """Whether all samples have ended."""
        return all(request.finished for request in self.requests)

    @property
    def emitted(self) -> int:
        """Ids emitted by all samples."""
        return sum(request.output_len for request in self.requests)

    def news(self) -> RequestOutput | None:
        """Return how far the prompt has come if that is further than what was last returned here, else None.

        Whoever made the steps, every gain is shown, and the end once.
        """
        state = (self.emitted, sum(request.finished for request in self.requests))
        if state == self._shown:
            return None
        self._shown = state
        return self.output()

    def output(self) -> RequestOutput:
        """Return how far the prompt has come."""
        metrics = SpecMetrics()
        metrics.merge(request.metrics for request in self.requests)
        scored = self.requests[0].prompt_logprobs
        return RequestOutput(
            request_id=self.name,
            prompt=self.prompt.text,
            prompt_token_ids=self.prompt.ids.tolist(),
            outputs=[_completion(request) for request in self.requests],
            finished=self.finished,
            metrics=metrics,
            prompt_logprobs=None if scored is None else list(scored),
            num_cached_tokens=self.requests[0].num_cached_tokens,
        )


def _completion(request: Request) -> CompletionOutput:
    ids, logprobs = request.output_ids, request.logprobs
    return CompletionOutput(
        index=request.seq_index,
        text=request.text.update(ids, finished=request.finished),
        token_ids=ids,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        cumulative_logprob=None if logprobs is None else _cumulative(ids, logprobs),
        logprobs=None if logprobs is None else list(logprobs),
        error=request.error,
        plain_reason=request.plain_reason,
    )


def _cumulative(ids: list[int], logprobs: list[Logprobs]) -> float:
    return sum((entry[token].logprob for token, entry in zip(ids, logprobs, strict=True)), 0.0)
