"""A drafter for vLLM that notes all that its method is shown, and what the method drafts."""

from __future__ import annotations

import itertools

from specdec_core.draft import Draft
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Stub
from specdec_vllm.bridge.proposer import StateProposer


class Wrapped(Stub):
    """A real proposer with its traits, as a recorder wants it; notes its drafts, and hands others on.

    What is handed on begins as the finished texts go on, for a length that depends on the place alone: so that a head
    with random weights has drafts rejected after each number of accepted ones, in every host at the same places.
    """

    def __init__(self, proposer, traits, texts):
        super().__init__()
        self.traits, self.proposer, self.texts = traits, proposer, texts
        self.drafts = []

    def start(self, request):
        self.proposer.start(request)

    def finish(self, request, reason):
        self.proposer.finish(request, reason)

    def propose(self, batch):
        draft: Draft = self.proposer.propose(batch)
        ends = [0]
        for length in draft.lengths:
            ends.append(ends[-1] + length)
        spans = list(itertools.pairwise(ends))
        self.drafts.append([draft.tokens[a:b].tolist() for a, b in spans])
        for i, (a, b) in enumerate(spans):
            known = batch.request(i).tokens.tolist()
            text = next((ids for ids in self.texts if ids[: len(known)] == known), known)
            right = text[len(known) : len(known) + (len(known) * 2654435761 >> 9) % (b - a + 1)]
            draft.tokens[a : a + len(right)] = right
        return draft


def recorder_of(proposer, traits, texts=()):
    """Wrap a proposer so that it is recorded."""
    inner = Wrapped(proposer, traits, texts)
    return RecordingProposer(traits.rows, hidden=traits.hidden, aux_layers=traits.aux_layers, inner=inner)


class RecordingStates(StateProposer):
    """Records from the first real step on."""

    last: RecordingStates | None = None
    texts = ()

    def load_model(self, *args, **kwargs):
        super().load_model(*args, **kwargs)
        RecordingStates.last = self
        self.recorder = recorder_of(self._drafting._proposer, self._configured.resolved.traits, self.texts)
        self._drafting._proposer = self.recorder


def rows_by_text(recorder, texts):
    """Return what a recorder saw, by (number of the text, position): the token and the states; the newest counts.

    And the drafts by (number of the text, known ids). `texts` are finished ones, of which each request is a beginning.
    """
    rows, drafts = {}, {}
    for call, drafted in zip(recorder.calls_seen, recorder.inner.drafts, strict=True):
        for i, known in enumerate(call.tokens):
            text = next(t for t, ids in enumerate(texts) if ids[: len(known)] == known)
            own = [] if call.rows is None else (call.rows.request == i).nonzero()[0].tolist()
            for row in own:
                hidden = None if call.rows.hidden is None else call.rows.hidden[row]
                aux = None if call.rows.aux is None else call.rows.aux[row]
                rows[text, int(call.rows.positions[row])] = (int(call.rows.tokens[row]), hidden, aux)
            if call.max_draft[i]:
                drafts[text, len(known)] = drafted[i]
    return rows, drafts
