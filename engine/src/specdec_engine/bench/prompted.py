"""What all commands that run a model on prompts begin with: plain decoding loaded, prompts encoded, room for drafts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specdec_core.sources import TargetInfo
from specdec_engine.bench.arms import Arm, ModelOptions, arena_tokens, build_arm, closing, encode, load_plain
from specdec_engine.bench.measure import Work
from specdec_engine.bench.methods import Method
from specdec_engine.bench.prompts import BenchPrompt
from specdec_engine.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """A model, and the prompts that it is run on; `chat`: each through the chat template."""

    model: ModelOptions
    prompts: Sequence[BenchPrompt]
    params: SamplingParams
    chat: bool

    @contextlib.contextmanager
    def opened(self, target: TargetInfo, most: int, drafts: int) -> Iterator[tuple[Arm, Work]]:
        """Load the model for plain decoding; yield it, and what every engine on its weights runs.

        There is room for `most` requests at one time with `drafts` drafts each. Raises RequestError for a prompt that
        cannot run.
        """
        plain = load_plain(self.model, most)
        with closing([plain]):
            work = Work(encode(plain.llm, self.prompts, self.chat, self.params), self.params)
            lengths = [len(ids) for ids in work.ids]
            plain.llm.resume(arena_tokens(lengths, self.params.max_tokens or 0, most, drafts, target.max_model_len))
            yield plain, work

    @contextlib.contextmanager
    def built(
        self, methods: Sequence[Method], plain: Arm, show: Callable[[str], None] = lambda text: None
    ) -> Iterator[list[Arm]]:
        """Yield an engine for each method on the weights of `plain`. Raises ConfigError naming the method."""
        arms: list[Arm] = []
        with closing(arms):
            for method in methods:
                show(f"building {method.label}")
                arms.append(build_arm(method, plain.llm, self.model))
            yield arms
