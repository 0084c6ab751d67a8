"""Whether drawn drafts have the distribution that is reported as q, counted over many requests in one fixed state."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_core.draft import BatchView, Draft
from specdec_core.protocols import Proposer
from specdec_core.sources import TargetHandle
from specdec_core.traits import MethodTraits
from specdec_testing.driving import Driver, Script
from specdec_testing.goodness_of_fit import fit

REQUESTS: Final = 400
TOGETHER: Final = 16  # requests that run at one time, which caches must have room for
GROUPS: Final = 16
SIGNIFICANCE: Final = 1e-4
PROMPT: Final = (5, 9, 4, 7)


class FirstDrafts:
    """Gathers the first draft of each row and the row of q it names; notes who looked for the noise of acceptance.

    Requests are given a `key`, as a host's own may have: the contract has none, and who reads it knows the noise that
    decides about its drafts.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.tokens: list[int] = []
        self.q: list[npt.NDArray[np.float64]] = []
        self.peeked = False

    def look(self, batch: BatchView) -> None:
        """Replace the class of the views by one that notes a look at `key`."""
        owner = self

        for view in batch.requests:
            if not hasattr(type(view), "key"):

                def key(_: object) -> int:
                    owner.peeked = True
                    return 0

                view.__class__ = type("Watched", (type(view),), {"__slots__": (), "key": property(key)})

    def see(self, batch: BatchView, draft: Draft) -> None:
        """Take in one call's drafts."""
        draft = draft.to_host()
        start = 0
        for length in draft.lengths or ():
            if length and draft.q is not None and draft.q_row is not None and draft.q_row[start] >= 0:
                self.tokens.append(int(draft.tokens[start]))
                self.q.append(_over_target_ids(draft.q[int(draft.q_row[start])], draft.d2t))
            start += length


def _over_target_ids(q: Tensor, d2t: Tensor | None) -> npt.NDArray[np.float64]:
    values = q.detach().cpu().double().numpy()
    if d2t is None:
        return values
    ids = np.arange(len(values)) + d2t.cpu().numpy()
    wide = np.zeros(int(ids.max()) + 1)
    wide[ids] = values
    return wide


def assert_drafts_follow_q(proposer: Proposer, traits: MethodTraits, target: TargetHandle) -> None:
    """Raise AssertionError unless the first drafts of many requests with one text follow the q that comes with them.

    All requests have the same text and states, and each noise of its own. q must be the same for all of them, which a
    drafter that chooses q by its draw does not give.
    """
    scripts = [
        Script(name=f"drawn-{i}", prompt=PROMPT, seed=3, steps=1, limits=(1,), temperature=1.0, noise_seed=i)
        for i in range(REQUESTS)
    ]
    found, driver = FirstDrafts(), Driver(proposer, traits, target)
    driver.look, driver.see = found.look, found.see
    for first in range(0, REQUESTS, TOGETHER):
        driver.run(scripts[first : first + TOGETHER])
    driver.check()
    assert not found.peeked, "the proposer reads `request.key`; what it draws must come from `batch.noise` alone"
    assert len(found.tokens) > REQUESTS / 2, "its traits declare 'soft', and it drew almost nothing at temperature 1"
    distributions = np.stack(found.q)
    spread = float(np.abs(distributions - distributions[0]).max())
    assert spread < 1e-3, f"requests of one text and state report q that differ by {spread:.2g}"
    counts, distribution = np.bincount(found.tokens, minlength=distributions.shape[1]), distributions.mean(0)
    group = np.arange(len(distribution)) % GROUPS  # a flat q over many ids has too few counts for each of them
    for part in (fit(counts, distribution), fit(np.bincount(group, counts), np.bincount(group, distribution))):
        assert part.p_value > SIGNIFICANCE, (
            f"drafts do not follow the q that is reported: p = {part.p_value:.2e}; furthest off is {part.worst}"
        )
