"""Proposers for vLLM that note what they are shown and what they answer; and one that vLLM tells no names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specdec_vllm.proposer import Proposer


@dataclass
class Call:
    """One step: for each request with new ids its name, these ids, and the drafts."""

    rows: list[tuple[str, list[int], list[int]]]


class Recording(Proposer):
    """Notes every step, under the names of requests."""

    calls: ClassVar[list[Call]] = []
    last: ClassVar[Recording | None] = None

    def __init__(self, vllm_config):
        super().__init__(vllm_config)
        Recording.calls, Recording.last = [], self

    def propose(self, sampled, lengths, table, *args, **kwargs):
        drafts = super().propose(sampled, lengths, table, *args, **kwargs)
        known = self._requests
        places = [i for i, new in enumerate(sampled) if len(new)]
        if hasattr(known, "_names"):
            names = [known._names().of_rows[i] for i in places]
        else:
            names = [known._places[i].id for i in places]
        self.calls.append(Call([(name, list(sampled[i]), drafts[i]) for name, i in zip(names, places, strict=True)]))
        return drafts

    def load_model(self, *args, **kwargs):
        super().load_model(*args, **kwargs)
        self.told = told = []
        proposer = self._drafting._proposer
        for call in ("start", "finish"):
            original = getattr(proposer, call)

            def noting(request, *rest, call=call, original=original):
                told.append((call, request.id, *rest, len(request.tokens)))
                return original(request, *rest)

            setattr(proposer, call, noting)


class Nameless(Recording):
    """As in a vLLM without our plugin: no runner is shown, and nobody is asked near the longest context."""

    bind = None
    limits_itself = False


def drafted_and_accepted(calls, k):
    """What vLLM counts, made from the steps: a draft is what a request got in one step, verified in its next one."""
    waiting: dict[str, list[int]] = {}
    drafts = drafted = accepted = 0
    per_position = [0] * k
    for call in calls:
        for name, new, draft in call.rows:
            verified = waiting.pop(name, [])
            if verified:
                drafts += 1
                drafted += len(verified)
                accepted += len(new) - 1
                for i in range(len(new) - 1):
                    per_position[i] += 1
            waiting[name] = draft
    return {
        "spec_decode_num_drafts": drafts,
        "spec_decode_num_draft_tokens": drafted,
        "spec_decode_num_accepted_tokens": accepted,
        "spec_decode_num_accepted_tokens_per_pos": per_position,
    }
