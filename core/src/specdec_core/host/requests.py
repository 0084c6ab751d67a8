"""What the host half needs of an engine's requests and of its steps; it knows no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specdec_core.draft import IntArray, RequestView


class HostRequest(Protocol):
    """A request of a host, as the host half reads it."""

    @property
    def id(self) -> str:
        """Name of the request, unique in a session."""

    @property
    def view(self) -> RequestView:
        """What plugins get, always the same object (`specdec_core.host.handed.HandedRequest`)."""

    @property
    def seq_index(self) -> int:
        """Index of this sample among the samples of its prompt."""

    @property
    def tokens(self) -> IntArray:
        """All known ids, [prompt + output] int32."""

    @property
    def key(self) -> int:
        """The 64-bit key of its noise (`specdec_core.noise.request_key`)."""

    @property
    def max_draft(self) -> int | None:
        """Its own limit of drafts a step; None for none, 0 for a request that is decoded without speculation."""

    @property
    def arrival(self) -> int:
        """Its number in order of arrival; where a drafter's memory is full, the youngest goes without drafts."""

    def __len__(self) -> int:
        """Return the number of known ids."""


@dataclass(slots=True)
class Slot:
    """One running request in a step's call for drafts.

    request       the request; its `tokens` are all ids known so far
    run_len       positions that the target has run and kept
    newest_known  the newest id is sampled and not yet run: the request may get drafts (False inside a prompt)
    room          the most drafts that may stand in sequence before the text has to end: ids that the request
                  may still gain, less the one that the target adds to accepted drafts
    """

    request: HostRequest
    run_len: int
    newest_known: bool
    room: int
