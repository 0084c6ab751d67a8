"""The form of a speculator's trees: how many ids follow at each head, and how many sequences are kept; no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specdec_core.sources import Problem
from specdec_plugin_mlp_speculator.layout import Layout, SpeculatorReader
from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions
from specdec_plugin_mlp_speculator.settings import TOP_K


@dataclass(frozen=True)
class Form:
    """A tree: `widths[i]` ids follow each sequence at head i, and of all sequences the `kept` likeliest stay."""

    widths: tuple[int, ...]
    kept: int

    @property
    def most_nodes(self) -> int:
        """The most nodes that such a tree can have: sequences that share no more than they must."""
        sizes = (math.prod(self.widths[: depth + 1]) for depth in range(len(self.widths)))
        return sum(min(self.kept, size) for size in sizes)


def is_tree(options: MlpSpeculatorOptions) -> bool:
    """Return whether trees are asked for."""
    return options.n_candidates is not None or options.top_k_tokens_per_head is not None


def form_of(options: MlpSpeculatorOptions, reading: SpeculatorReader) -> Form | None:
    """Return the form that is asked for, what is left out being the checkpoint's; None if that has none either."""
    widths = options.top_k_tokens_per_head or reading.top_k
    kept = options.n_candidates or reading.n_candidates
    return Form(widths, kept) if is_tree(options) and widths and kept else None


def problems_of_form(options: MlpSpeculatorOptions, reading: SpeculatorReader, layout: Layout) -> list[Problem]:
    """Return what is wrong with the trees that are asked for."""
    if not is_tree(options):
        return []
    form = form_of(options, reading)
    if form is None:
        key = TOP_K if options.top_k_tokens_per_head is None else "n_candidates"
        message = f"trees need it, and config.json of {reading.model!r} does not have it"
        return [Problem(key=key, message=message, next_step=f"give {key}")]
    problems = []
    if len(form.widths) > layout.n_predict:
        message = f"{list(form.widths)} is for {len(form.widths)} heads, and the checkpoint has {layout.n_predict}"
        problems.append(Problem(key=TOP_K, message=message, next_step="give one number a head"))
    if max(form.widths) > layout.rows:
        message = f"{max(form.widths)} ids would follow, and a head knows {layout.rows}"
        problems.append(Problem(key=TOP_K, message=message, next_step="give smaller numbers"))
    if form.kept > math.prod(form.widths):
        message = f"{form.kept} sequences cannot be kept of the {math.prod(form.widths)} that {list(form.widths)} makes"
        problems.append(Problem(key="n_candidates", message=message, next_step=f"give fewer, or a wider {TOP_K}"))
    return problems
