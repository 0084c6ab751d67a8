"""transformers' `generate`, plain and with prompt lookup, and its forward; the model as anyone loads it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
import transformers

from peer_bench.timed import Clock, Timed


class _Heard:
    """A streamer that counts ids as they come; the first call is the prompt's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prompt, self._count = True, 0

    def put(self, ids: torch.Tensor) -> None:
        """Take new ids."""
        if self._prompt:
            self._prompt = False
            return
        self._count += ids.numel()
        self._clock.have([self._count])

    def end(self) -> None:
        """Take the end."""


class TransformersLibrary:
    """One model; `arms` gives the further arguments of `generate` for each arm."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Load the model."""
        torch.set_num_threads(settings["threads"])
        transformers.utils.logging.set_verbosity_error()
        self._arms: dict[str, dict[str, Any]] = settings["arms"]
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=torch.bfloat16, trust_remote_code=False
        ).eval()

    def about(self) -> dict[str, Any]:
        """Return versions and threads."""
        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }

    def generate(self, arm: str, prompts: list[list[int]], max_tokens: int, *, keep: bool, space: str) -> Timed:
        """Answer one prompt; nothing is kept between calls."""
        (ids,) = prompts
        clock = Clock()
        inputs = torch.tensor([ids])
        with torch.inference_mode():
            out = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=max_tokens,
                do_sample=False,
                streamer=_Heard(clock),
                **self._arms[arm],
            )
        return clock.stop([out[0, len(ids) :].tolist()])

    def forwards(self, rows: list[int], context: int, turns: int) -> dict[int, list[float]]:
        """Time forwards over its own cache, the head on all rows."""
        found: dict[int, list[float]] = {count: [] for count in rows}
        with torch.inference_mode():
            ids = torch.arange(100, 100 + context)[None]
            cache = self._model(ids, use_cache=True).past_key_values
            for turn in range(turns + 1):
                for count in rows:
                    began = perf_counter()
                    self._model(ids[:, :count], past_key_values=cache, use_cache=True)
                    if turn:  # the first turn warms up
                        found[count].append(perf_counter() - began)
                    cache.crop(context)
        return found


def build(settings: dict[str, Any]) -> TransformersLibrary:
    """Return the library."""
    return TransformersLibrary(settings)
