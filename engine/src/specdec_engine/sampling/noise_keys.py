"""The key of a request's noise: its seed, and where drafts have a say in the text, all that drafts may depend on.

Acceptance and residual draws must be independent of the drafts. Noise that depends on the seed alone is not: an earlier
answer with the same seed was made by it, and may be in the prompt or in what a method remembers. Source:
docs/losslessness.md, "What the key depends on".
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.draft import IntArray
from specdec_core.host.factory import memory_digest
from specdec_core.noise import dependent_key, request_key
from specdec_core.protocols import Proposer


@dataclass(frozen=True)
class NoiseKeys:
    """Makes keys for the requests of one engine.

    seed        the engine's, for requests without one
    of_drafts   drafts have a say in what is emitted
    memory      digest of what the method remembered before any request; None if it remembers nothing
    """

    seed: int
    of_drafts: bool = False
    memory: bytes | None = None

    @classmethod
    def of(cls, seed: int, resolved: ResolvedConfig | None, proposer: Proposer | None) -> NoiseKeys:
        """Ask the verifier's and the method's traits. Raises MakeStageError where a memory has no digest."""
        if resolved is None or proposer is None or resolved.emits_host_draws:
            return cls(seed)
        return cls(seed, True, memory_digest(resolved, proposer))

    def key(self, seed: int | None, arrival: int, prompt: IntArray, options: Any = None) -> int:
        """Return the 64-bit key of a request: its own `seed`, its place among all, its prompt, its method options."""
        key = request_key(seed, self.seed, arrival)
        if not self.of_drafts:
            return key
        parts = [np.ascontiguousarray(prompt, "<i4").tobytes(), _canonical(options)]
        if self.memory is not None:
            parts += [struct.pack("<Q", arrival), self.memory]
        return dependent_key(key, *parts)


def _canonical(options: Any) -> bytes:
    """Return validated request options as bytes; whatever they are, equal ones give equal bytes."""
    if options is None:
        return b""
    data = options.model_dump(mode="json") if hasattr(options, "model_dump") else repr(options)
    return json.dumps(data, sort_keys=True).encode()
