"""P-EAGLE's rows see only those before them, so fewer drafts are the first of a whole block's without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from layouts import PARALLEL

from specdec_testing.driving import Driver, Script
from specdec_testing.recording import RecordingProposer

K = 5


def first_drafts(name: str, folder: Path, limit: int) -> list[int]:
    proposer, resolved, target = PARALLEL[name].build(folder, K)
    traits = resolved.traits
    drafts: list[list[int]] = []

    class Keeping(RecordingProposer):
        def propose(self, batch):  # type: ignore[no-untyped-def]
            draft = proposer.propose(batch)
            if batch.max_draft.any():
                drafts.append(draft.tokens.tolist())
            return draft

        def start(self, request):  # type: ignore[no-untyped-def]
            proposer.start(request)

        def finish(self, request, reason):  # type: ignore[no-untyped-def]
            proposer.finish(request, reason)

    driver = Driver(Keeping("all", hidden=traits.hidden, aux_layers=traits.aux_layers), traits, target)
    driver.run([Script("x", tuple(range(3, 20)), limits=(limit,), steps=1)])
    return drafts[0]


@pytest.mark.parametrize("name", ["peagle", "peagle-two-layers"])
def test_fewer_drafts_are_the_first_of_the_whole_blocks(name: str, tmp_path: Path) -> None:
    whole = first_drafts(name, tmp_path / "whole", K)
    assert len(whole) == K
    for limit in range(1, K):
        assert first_drafts(name, tmp_path / f"{limit}", limit) == whole[:limit]
