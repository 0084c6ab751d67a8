"""The samples of one prompt, and the picture of them that callers get."""

from __future__ import annotations

from typing import Any

from specdec.metrics import SpecMetrics
from specdec_engine.outputs import CompletionOutput, RequestOutput
from specdec_engine.prompts import Prompt
from specdec_engine.request import Request
from specdec_engine.text import TextStream


class Group:
    """The requests of one prompt, in order of sample."""

    def __init__(self, name: str, prompt: Prompt, requests: list[Request], tokenizer: Any) -> None:
        """Start with nothing emitted."""
        self.name = name
        self.prompt = prompt
        self.requests = requests
        self._texts = [TextStream(tokenizer, request) for request in requests]

    @property
    def finished(self) -> bool:
        """Whether all samples have ended."""
        return all(request.finished for request in self.requests)

    @property
    def emitted(self) -> int:
        """Ids emitted by all samples."""
        return sum(request.output_len for request in self.requests)

    def output(self) -> RequestOutput:
        """Return how far the prompt has come."""
        metrics = SpecMetrics()
        metrics.merge(request.metrics for request in self.requests)
        completions = []
        for request, text in zip(self.requests, self._texts, strict=True):
            completions.append(
                CompletionOutput(
                    index=request.seq_index,
                    text=text.update(),
                    token_ids=request.output_ids,
                    finish_reason=request.finish_reason,
                    stop_reason=request.stop_reason,
                )
            )
        ids: list[int] = self.prompt.ids.tolist()
        return RequestOutput(self.name, self.prompt.text, ids, completions, self.finished, metrics)
