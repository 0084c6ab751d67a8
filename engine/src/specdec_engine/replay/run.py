"""One trace through one method: drafts behind each known beginning are compared with what came; runs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace

import numpy as np

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.draft import Draft, IntArray
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.factory import make_proposer
from specdec_core.host.handed import HandedRequest, KnownIds
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.host.verified import Answers
from specdec_core.metrics import SpecMetrics
from specdec_core.noise import request_key
from specdec_core.registry.loader import Registry
from specdec_engine.decoding import trees
from specdec_engine.replay.target import TraceTarget
from specdec_engine.traces import Trace


class TraceRequest:
    """A trace in the form of `specdec_core.host.requests.HostRequest`: the prompt, and the ids that came so far."""

    seq_index, max_draft = 0, None

    def __init__(self, number: int, trace: Trace) -> None:
        """Begin with the prompt and the first id, which comes with the pass over the prompt."""
        self.id = str(number)
        self.arrival = number
        self.key = request_key(None, 0, number)
        self.ids = KnownIds(np.array((*trace.prompt_token_ids, trace.token_ids[0]), np.int32))
        params = SimpleNamespace(temperature=0.0, max_tokens=trace.max_tokens)
        self.view = HandedRequest(self.id, 0, len(trace.prompt_token_ids), self.ids, params, None)

    @property
    def tokens(self) -> IntArray:
        """All ids known so far, [prompt + output] int32."""
        return self.ids.view

    def __len__(self) -> int:
        """Return the number of known ids."""
        return len(self.ids)


@dataclass
class Score:
    """What a method did on traces: `seconds` of all calls for drafts.

    answered  verified rows at which a method was told what the target answered, if it asks for that; of rejected drafts
              no trace tells it
    """

    metrics: SpecMetrics = field(default_factory=SpecMetrics)
    seconds: float = 0.0
    tokens: int = 0
    answered: int = 0


class Replayer:
    """A method under test, from a resolved configuration; it goes on to know what it has seen, like in an engine."""

    def __init__(self, resolved: ResolvedConfig, target: TraceTarget, registry: Registry) -> None:
        """Build the proposer. Raises MakeStageError."""
        self._max_model_len = min(resolved.max_model_len, target.info.max_model_len)
        proposer = make_proposer(resolved, target, registry)
        containment = Containment(resolved.method)
        self._runner = ProposerRunner(
            proposer, resolved.traits, DraftBudget(resolved), target.info.vocab_size, containment
        )

    @property
    def failures(self) -> int:
        """Calls of the method that failed; they cost a step its drafts."""
        return self._runner.containment.failures

    def run(self, number: int, trace: Trace, score: Score) -> None:
        """Replay a trace, one step after the other as an engine takes them, and add what came of it to the score."""
        request, known, output = TraceRequest(number, trace), 1, trace.token_ids
        end = min(len(trace.prompt_token_ids) + (trace.max_tokens or len(output)), self._max_model_len)
        self._answer(request, trace, 0, 1, score)
        while known < len(output):
            slot = Slot(request, len(request) - 1, True, max(0, end - len(request) - 1))
            began = perf_counter()
            draft = self._runner.propose([slot])
            score.seconds += perf_counter() - began
            proposed = len(draft.tokens)
            if self._runner.drafts_trees and proposed:
                draft = trees.within(draft, [self._runner.budget.depth(slot)], [proposed])
            path = accepted_path(draft, output[known:])
            emitted = min(len(path) + 1, len(output) - known)
            depth = int(trees.depths(draft).max()) if len(draft.tokens) else 0
            score.metrics.add_row(
                proposed, len(draft.tokens), len(path), emitted, depth, asked=self._runner.asked(request)
            )
            if draft.part is not None:
                score.metrics.add_parts(draft.part.tolist(), path)
            request.ids.append(np.array(output[known : known + emitted], np.int32))
            self._answer(request, trace, known, emitted, score)
            known += emitted
        score.tokens += len(output)
        self._runner.finish(request, "done")

    def _answer(self, request: TraceRequest, trace: Trace, known: int, gained: int, score: Score) -> None:
        """Tell a method that asks for it what the target answered at the rows before the ids that were gained.

        Rows of rejected drafts are left out.
        """
        n = self._runner.verified_top_k
        if not n:
            return
        places = trace.top[known : known + gained]
        ids, logprobs = np.full((gained, n), -1, np.int32), np.full((gained, n), -np.inf, np.float32)
        for row, place in enumerate(places):
            best = place[:n]
            ids[row, : len(best)], logprobs[row, : len(best)] = [id_ for id_, _ in best], [each for _, each in best]
        tokens = request.tokens[-gained - 1 : -1]
        self._runner.answer(request, Answers.of(tokens, None, np.arange(gained - 1, dtype=np.int32), ids, logprobs))
        score.answered += gained

    def close(self) -> None:
        """Close the method."""
        self._runner.close()


def accepted_path(draft: Draft, coming: Sequence[int]) -> list[int]:
    """Return the nodes of a draft of one row that came true, from the first on.

    This is what verification accepts whose tokens are the target's own: greedy, or sampled with the verifier `coupled`.
    """
    path: list[int] = []
    for node, token in enumerate(draft.tokens.tolist()):
        parent = node - 1 if draft.parents is None else int(draft.parents[node])
        if len(path) < len(coming) and parent == (path[-1] if path else -1) and token == coming[len(path)]:
            path.append(node)
    return path
