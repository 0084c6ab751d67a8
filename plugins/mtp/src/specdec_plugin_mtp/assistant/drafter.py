"""Drafting with an assistant: one position for all drafts of a step, and no keys of its own; it knows no weights."""

from __future__ import annotations

import numpy as np

from specdec_core.draft import Draft, FinishReason, RequestView
from specdec_core.target_keys import TargetKeys
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import Round
from specdec_nn.drafters.stateless_heads import LastRowDrafter
from specdec_nn.drafters.tree_walk import newest_ids
from specdec_plugin_mtp.assistant.network import Assistant


class AssistantPlan:
    """Drafts chains: the newest id and the target's last state, then each draft and the assistant's own state."""

    def __init__(self, assistant: Assistant, keys: TargetKeys, sampler: DraftSampler, offset: int) -> None:
        """Take the network, the target's keys, what picks ids, and the position: 0 that of the newest id, -1 before."""
        self._assistant, self._keys, self._sampler, self._offset = assistant, keys, sampler, offset

    def __call__(self, drafts: Round) -> Draft:
        """Return chains of `limits` ids."""
        requests = [drafts.batch.request(i) for i in drafts.index.tolist()]
        picks, active = self._sampler.begin(drafts, None), np.arange(len(requests))
        tokens, states, keys = newest_ids(drafts), drafts.states, self._keys.of(requests)
        positions = to_device(drafts.positions.astype(np.int64) + self._offset, states.device)
        turns = self._assistant.turns(positions)
        for depth in range(int(drafts.limits.max())):
            behind = self._assistant(tokens, states, turns, keys)
            tokens = picks.pick(self._assistant.logits(behind), active, depth)
            going = np.flatnonzero(drafts.limits[active] > depth + 1)
            if not len(going):
                break
            states = self._assistant.feedback(behind)
            if len(going) < len(active):
                chosen, active = to_device(going, states.device), active[going]
                tokens, states = tokens[chosen], states[chosen]
                turns = {kind: (cos[chosen], sin[chosen]) for kind, (cos, sin) in turns.items()}
                keys = self._keys.of([requests[i] for i in active.tolist()])
        return picks.draft()


class AssistantDrafter(LastRowDrafter):
    """A proposer over the target's last states and its keys."""

    def __init__(self, plan: AssistantPlan, keys: TargetKeys) -> None:
        """Take what drafts, and the keys that it reads."""
        super().__init__(plan)
        self._keys = keys

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Let go what is held of the request."""
        self._keys.release(request)

    def close(self) -> None:
        """Let everything go."""
        self._keys.close()

    def memory_bytes(self) -> int:
        """Return what the host holds for the drafts, besides the target's own keys and values."""
        return self._keys.memory_bytes()
