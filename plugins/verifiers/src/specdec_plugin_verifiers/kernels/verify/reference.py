"""The whole verifications in torch, which define them: the rules by small ops, all nodes at one time."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugin_verifiers.block import all_tests
from specdec_plugin_verifiers.ending import ended
from specdec_plugin_verifiers.standard import all_nodes
from specdec_plugin_verifiers.trial import Trial


def verify_coupled(trial: Trial) -> Tensor:
    """Verify by the draws that the host gave, else by those of the op `draw`.

    Returns [n, 2 + depth] int64 on the device of the logits. In the order of the columns: the logits row where the
    accepted path of a tree stops, the id that ends it (-1 where that row has no distribution), and the nodes of the
    path, as indices into the draft's flat arrays, -1 after its end.
    """
    trial = trial.read_form()
    forest = trial.forest
    draws = trial.draws
    if draws is None:
        draws = trial.op("draw")(trial.logits, trial.noise, trial.greedy[trial.owners])
    children = trial.children()
    nodes = children.nodes
    certain = torch.where(children.tokens == draws[:, None], torch.inf, 0.0).double()
    starts, own_row = trial.tensor(forest.starts), trial.tensor(forest.own_row)
    stops, path = trial.op("tree_walk")(nodes, own_row, certain, torch.zeros_like(certain), starts, forest.depth)
    return torch.cat([stops[:, None], draws[stops, None], path], 1)


def verify_standard(trial: Trial) -> Tensor:
    """Verify by rejection sampling; return what `verify_coupled` does."""
    trial = trial.read_form()
    return ended(trial, *all_nodes(trial))


def verify_block(trial: Trial) -> Tensor:
    """Verify chains by the tests of blocks; return what `verify_coupled` does."""
    return ended(trial, *all_tests(trial))
