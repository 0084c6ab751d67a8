"""Which major version of the hook API is spoken with a distribution that may offer several; reads no metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import specdec_core
from specdec_core.registry.groups import SPOKEN, group_of
from specdec_core.registry.installed import Claim
from specdec_core.registry.record import Record, Status


def negotiate(claims: Iterable[Claim]) -> list[Claim]:
    """Return one claim for each thing of each distribution: of the newest major that both speak.

    Where there is none, it is the one nearest to this core, which `major_problem` then refuses.
    """
    offered: dict[tuple[str, str, str], list[Claim]] = defaultdict(list)
    for claim in claims:
        offered[claim.kind, claim.name, claim.distribution].append(claim)
    return [claim for same in offered.values() for claim in _best(same)]


def _best(same: Sequence[Claim]) -> list[Claim]:
    spoken = [claim.major for claim in same if claim.major in SPOKEN]
    newer = [claim.major for claim in same if claim.major > max(SPOKEN)]
    chosen = max(spoken) if spoken else min(newer) if newer else max(claim.major for claim in same)
    return [claim for claim in same if claim.major == chosen]


def major_problem(claim: Claim) -> tuple[Status, str] | None:
    """Return status and reason of a claim whose major this core does not speak, None for one that it does."""
    if claim.major in SPOKEN:
        return None
    speaks = " and ".join(map(str, SPOKEN))
    reason = (
        f"it is made for hook API {claim.major} (the group {group_of(claim.kind, claim.major)}), and specdec-core "
        f"{specdec_core.__version__} speaks {speaks}"
    )
    return ("needs newer core" if claim.major > max(SPOKEN) else "needs newer plugin"), reason


def next_step(record: Record) -> str:
    """Return what to do about a record whose version does not fit this core."""
    if record.status == "needs newer core":
        return f"Upgrade specdec-core, or install an older {record.distribution}: pip install --upgrade specdec-core"
    if record.status == "needs newer plugin":
        step = f"pip install --upgrade {record.distribution}"
        return f"Upgrade {record.distribution}, or ask its authors for a version for this hook API: {step}"
    return f"Install versions of {record.distribution} and of specdec-core that fit together."
