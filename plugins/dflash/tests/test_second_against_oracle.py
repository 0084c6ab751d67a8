"""DFlash2, LiLiCorr and Domino: drafts and distributions of every layout are the oracle's, over ragged batches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from dflash_oracle import distribution
from dflash_replay import agreement, watched
from second_layouts import SECONDS
from second_oracle import Second, SecondOracle
from test_dflash_against_oracle import SCRIPTS
from test_dflash_distributions import DRAWN, TEMPERATURES, drive

from specdec_plugin_dflash.choosers import PairSelector, Places
from specdec_plugin_dflash.convolution import BlockConvolution
from specdec_testing.driving import Driver

# Four of the layouts for every change, all of them in `make test`.
OFTEN = ("DFlash2", "DFlash2, factors", "LiLiCorr, narrower, convolutions", "Domino, shifted")
SOME_OFTEN = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in SECONDS]


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_drafts_are_the_oracles(name: str, tmp_path: Path) -> None:
    layout = SECONDS[name]
    proposer, resolved, target = layout.build(tmp_path / "head", 6)
    recorder = watched(proposer, resolved.traits)
    driver = Driver(recorder, resolved.traits, target)
    driver.run(SCRIPTS)
    assert driver.problems == []
    found = agreement(recorder, layout.oracle(), 6)
    assert set(found.drafted) == {script.name for script in SCRIPTS}
    assert sum(found.drafted.values()) > 60
    assert found.gaps > 8, "gaps were among them"
    assert found.margin > 2e-5
    proposer.close()


@pytest.mark.parametrize("name", ["DFlash2, factors", "LiLiCorr", "Domino, padded"])
def test_drawn_drafts_report_the_oracles_distributions(name: str, tmp_path: Path) -> None:
    layout, compared, strayed = SECONDS[name], 0, 0
    oracle = layout.oracle()
    for moment in drive(layout, tmp_path / "x", **DRAWN):
        temperature = TEMPERATURES[moment.name]
        if temperature == 0.0:
            continue
        wanted = oracle.draft(moment.rows, moment.newest, moment.limit, given=moment.tokens, whole=4)
        assert moment.draft.q is not None
        assert moment.draft.q_row is not None
        rows = moment.draft.q_row[moment.flat].tolist()
        for logits, row, token in zip(wanted.logits, rows, moment.tokens, strict=True):
            torch.testing.assert_close(
                moment.draft.q[row].double(), distribution(logits, temperature), atol=2e-5, rtol=1e-3
            )
            assert moment.draft.q[row][token] > 0
            compared += 1
            strayed += token != int(logits.argmax())
    assert compared > 20
    assert strayed >= 2, "drafts were drawn, not the likeliest ones"


@pytest.mark.parametrize("name", ["DFlash2", "LiLiCorr, narrower, convolutions", "Domino"])
def test_what_stands_on_top_of_a_block_changes_its_drafts(name: str, tmp_path: Path) -> None:
    """Without it the same block drafts otherwise, so that the comparisons above see it."""
    layout, differing = SECONDS[name], 0
    oracle = layout.oracle()
    for moment in drive(layout, tmp_path / "x"):
        alone = super(SecondOracle, oracle).draft(moment.rows, moment.newest, moment.limit, whole=4)
        differing += alone.tokens != moment.tokens
    assert differing > 5


def worked() -> SecondOracle:
    """Return an oracle with the tables of the worked example, whose states are W_h y already."""
    tensors = {
        "lm_head.weight": torch.zeros(4, 2),
        "candidate_selector.predecessor_codebook": torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        "candidate_selector.successor_codebook": torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]]),
        "candidate_selector.hidden_projection.weight": torch.eye(2),
    }
    table = torch.zeros(4, 2)
    oracle = SecondOracle(tensors, layout_meaning(), Second(top_k=2), table, table)
    base = [torch.tensor([-9.0, 0.9, 1.0, -9.0]).double(), torch.tensor([-9.0, -9.0, 0.5, 0.8]).double()]
    oracle.base = lambda y: base[int(y[1])]  # type: ignore[method-assign]
    return oracle


def layout_meaning() -> object:
    return SECONDS["DFlash2"].meaning


@pytest.mark.parametrize(
    ("anchor", "first", "second", "ids"),
    [(3, [1.9, 1.0], {3: 0.8, 2: 0.5}, [1, 3]), (0, [0.9, 1.0], {3: 0.8, 2: 2.5}, [2, 2])],
)
def test_the_selector_is_the_worked_one(
    anchor: int, first: list[float], second: dict[int, float], ids: list[int]
) -> None:
    oracle = worked()
    states = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    score = oracle.selector(states.double(), anchor, states[0])
    base = torch.stack([oracle.base(y) for y in states]).float()
    tables = [oracle.t[f"candidate_selector.{name}_codebook"].float() for name in ("predecessor", "successor")]
    selector = PairSelector(tables[0], tables[1], lambda x: x, 2)
    walk = selector.begin(Places(states, base, torch.tensor([anchor]), states[:1]))
    chosen: list[int] = []
    for depth, wanted in enumerate([{1: first[0], 2: first[1]}, second]):
        logits = walk.logits(torch.tensor([depth]), torch.tensor([0]), depth)[0]
        for values in (score(chosen), logits.double()):
            assert {i: pytest.approx(float(v), abs=1e-6) for i, v in enumerate(values) if v > -math.inf} == wanted
        chosen.append(int(logits.argmax()))
        walk.take(torch.tensor([0]), torch.tensor(chosen[-1:]))
    assert chosen == ids


def test_the_convolution_is_the_worked_one_and_stays_within_its_block() -> None:
    base = torch.tensor([[[1.0, 1.0], [0.5, -0.1]], [[1.0, 1.0], [0.0, 0.0]]])
    convolution = BlockConvolution(base, lambda x: torch.zeros(len(x), 8))
    x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    wanted = torch.tensor([[1.0, 10.0], [2.5, 19.0], [4.0, 28.0]])
    place = torch.tensor([0, 1, 2])
    torch.testing.assert_close(convolution.around(x, place, lambda z: z), wanted)
    both = convolution.around(torch.cat([x, x]), torch.cat([place, place]), lambda z: z)
    torch.testing.assert_close(both, torch.cat([wanted, wanted]))
