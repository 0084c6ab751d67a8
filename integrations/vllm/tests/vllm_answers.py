"""A proposer of the bridge that keeps what it is shown; vLLM imports it by name, so it has a module of its own."""

from __future__ import annotations

from specdec_testing.recording import RecordingProposer
from specdec_vllm.bridge.proposer import StateProposer


class Recording(StateProposer):
    """Records what the method is shown, and drafts what it drafts."""

    last = None

    def load_model(self, *args, **kwargs):
        super().load_model(*args, **kwargs)
        inner, inner.traits = self._drafting._proposer, self._configured.resolved.traits
        self.recorder = RecordingProposer("none", hidden=False, verified_top_k=inner.traits.verified_top_k, inner=inner)
        self._drafting._proposer = self.recorder
        Recording.last = self
