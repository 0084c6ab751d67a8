"""What a collection is told: what the data depend on, and where it ends; and what the manifest keeps of it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from specdec_core.errors import RequestError
from specdec_core.sources import TargetInfo
from specdec_train.collect.starters.tasks import GIVEN, SHARES, TASKS
from specdec_train.data.manifest import Manifest

STORED: Final = "bfloat16"
QUESTION_IDS: Final = 96  # the most ids of a question that the target writes
LEAST_ANSWER: Final = 8  # ids; see `memory.is_compared`, and loops that leave less than twice as many
BEYOND: Final = 3  # ids that a request could emit behind the last one that counts, so that it is never ended by itself


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the data depend on, besides the target.

    aux_layers      R_k indices of the states to keep besides the last one
    max_tokens      the most ids of an answer
    temperature     of the answers that are not greedy, and `greedy` the share of those that are
    question_temperature  of questions that the target writes
    together        requests that are decoded at one time
    shard_requests  requests of a shard; a killed collection loses the shard that it was at
    context         the most ids of a prompt and its answer
    seed            of everything that is drawn
    shares          weights of the tasks
    prompts         the user's own prompts; None: starters of our own
    chat            use the chat template, if there is one
    """

    aux_layers: tuple[int, ...]
    max_tokens: int = 256
    temperature: float = 0.7
    greedy: float = 0.7
    question_temperature: float = 0.9
    together: int = 32
    shard_requests: int = 128
    context: int = 2048
    seed: int = 0
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    prompts: Sequence[str] | None = None
    chat: bool = True

    @property
    def longest_prompt(self) -> int:
        """The most ids of a prompt."""
        return self.context - self.max_tokens - BEYOND

    def check(self) -> None:
        """Raise RequestError for a context that leaves no room for prompts."""
        if self.longest_prompt < 16:
            message = (
                f"--max-tokens {self.max_tokens} leaves {self.longest_prompt} of {self.context} positions for a "
                f"prompt, and at least 16 are needed: give fewer"
            )
            raise RequestError(message)

    def manifest(self, target: TargetInfo) -> Manifest:
        """Return the manifest of data of these settings, without shards."""
        given = None
        if self.prompts is not None:
            given = hashlib.sha256("\0".join(self.prompts).encode()).hexdigest()
        kept: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "greedy": self.greedy,
            "question_temperature": self.question_temperature,
            "together": self.together,
            "shard_requests": self.shard_requests,
            "context": self.context,
            "chat": self.chat,
            "shares": {GIVEN: 1.0} if given else dict(self.shares),
            "prompts": given,
            # Passages of the starters are those of this Python's standard library.
            "python": ".".join(platform.python_version_tuple()[:2]),
        }
        return Manifest(
            target=target.model or "",
            target_config=target.hf_config,
            hidden_size=target.hidden_size,
            aux_layers=self.aux_layers,
            dtype=STORED,
            seed=self.seed,
            tasks=TASKS,
            settings=kept,
        )


@dataclass(frozen=True)
class Limits:
    """Where a collection ends, at the end of a shard: at so many ids, or before so many minutes are over."""

    ids: int | None = None
    minutes: float | None = None


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return an early, a middle and a late state of a target: R_2, R_{L // 2}, R_{L - 3}, those of EAGLE-3 heads.

    Source: EAGLE-3 (arXiv:2503.01840), section 3.1: "low-, mid- and high-level features".
    """
    return tuple(sorted({min(2, num_layers), num_layers // 2, max(num_layers - 3, 1)}))


def read_aux_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Return the indices of a list such as "2,15,27"; "" and "none" for no states but the last.

    Raises RequestError for what is no such list, or beyond the target's layers.
    """
    if text.strip() in ("", "none"):
        return ()
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [-1]
    if not all(0 <= k <= num_layers for k in found):
        message = (
            f"--aux-layers {text!r}: expected numbers of 0 .. {num_layers} with commas between them; k is the state "
            f"after k of the target's {num_layers} layers"
        )
        raise RequestError(message)
    return tuple(found)
