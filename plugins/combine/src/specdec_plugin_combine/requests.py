"""One request as a part sees it: the host's own view, with the part's options and a limit for this step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specdec_core.draft import IntArray, RequestView
from specdec_plugin_combine.estimate import Estimate
from specdec_plugin_combine.merging import Merger
from specdec_plugin_combine.rules import PartRow


class PartView:
    """A `RequestView` for one part: that of the host, with the part's own request options as `extra`."""

    __slots__ = ("__weakref__", "_extra", "_view")

    def __init__(self, view: RequestView, extra: Any) -> None:
        """Show `view` with `extra` in place of its own."""
        self._view, self._extra = view, extra

    def __getattr__(self, name: str) -> Any:
        """Return what the host's view has."""
        return getattr(self._view, name)

    @property
    def extra(self) -> Any:
        """The part's own options of the request, None if there are none."""
        return self._extra


@dataclass(slots=True)
class PartRequest:
    """A request in the form of `specdec_core.host.requests.HostRequest`, for the runner of one part.

    max_draft  the most drafts of this step; the room of the step says where there are to be none
    key        the noise key that the host gave to the combination; the runner hashes it again for parts that do not
               share the target's noise
    """

    id: str
    view: RequestView
    arrival: int
    key: int = 0
    max_draft: int | None = None

    @property
    def seq_index(self) -> int:
        """Index of this sample among the samples of its prompt."""
        return self.view.seq_index

    @property
    def tokens(self) -> IntArray:
        """All known ids, [prompt + output] int32."""
        return self.view.tokens

    def __len__(self) -> int:
        """Return the number of known ids."""
        return len(self.view.tokens)


@dataclass(slots=True)
class Followed:
    """What is kept of one request between steps.

    parts      the request as each part sees it
    estimates  what each part's drafts have been worth
    seen       how many ids had been known when the last drafts were made
    delivered  the position after the last row that the host delivered
    drafted    each part's last draft
    steps      how often there were drafts
    merger     the tree of the drafts of all parts, under the rule `merge`
    """

    parts: list[PartRequest]
    estimates: list[Estimate]
    seen: int
    merger: Merger | None = None
    delivered: int = 0
    drafted: list[PartRow] = field(default_factory=list)
    steps: int = 0

    @property
    def tree(self) -> Merger:
        """`merger`, where the rule is `merge`."""
        assert self.merger is not None
        return self.merger
