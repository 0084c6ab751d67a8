"""What a configured speculator needs and gives, which k it asks for, and what is wrong with it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.config.speculative import COUPLED, SpeculativeConfig
from specdec_core.sources import Default, DraftSource, Problem, TargetInfo
from specdec_core.traits import MethodTraits
from specdec_plugin_mlp_speculator.layout import SpeculatorReader
from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions
from specdec_plugin_mlp_speculator.trees import form_of, is_tree, problems_of_form


def traits_of(
    config: SpeculativeConfig, options: MlpSpeculatorOptions, draft: DraftSource | None, target: TargetInfo
) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    reading = None if draft is None else SpeculatorReader(draft, target)
    layout = None if reading is None else reading.layout()
    form = None if reading is None else form_of(options, reading)
    tree, n_predict = is_tree(options), None if layout is None else layout.n_predict
    drawn = config.draft_sample_method == "probabilistic"
    return MethodTraits(
        shape="tree" if tree else "chain",
        rows="last",
        hidden=True,
        law="soft" if drawn else "deterministic",
        shares_noise=drawn and config.rejection_sample_method == COUPLED,
        weights="own",
        vocabulary="subset" if layout is not None and layout.rows < target.vocab_size else "target",
        max_tokens=(None if form is None else form.most_nodes) if tree else n_predict,
        when_off="gap",  # rows that were dropped are not missed: only the last one is read
        n_predict=None if tree else n_predict,  # k counts the nodes of a tree, not its depth
    )


def defaults_of(options: MlpSpeculatorOptions, draft: DraftSource | None, target: TargetInfo) -> Sequence[Default]:
    """Return k: the most nodes of a tree, or the heads of the checkpoint."""
    key, reading = "num_speculative_tokens", None if draft is None else SpeculatorReader(draft, target)
    layout = None if reading is None else reading.layout()
    if reading is None or layout is None:
        # What is wrong with the checkpoint is said by the check; that k is missing too would only hide it.
        return [Default(key=key, value=1, reason="there is no checkpoint that can be used")]
    if is_tree(options):
        form = form_of(options, reading)
        if form is None:
            return [Default(key=key, value=1, reason="there is no tree that can be made")]
        reason = f"the most nodes of {form.kept} sequences under {list(form.widths)}"
        return [Default(key=key, value=form.most_nodes, reason=reason)]
    return [Default(key=key, value=layout.n_predict, reason=f"n_predict of the checkpoint, {layout.n_predict}")]


def problems_of(
    config: SpeculativeConfig, options: MlpSpeculatorOptions, draft: DraftSource | None, target: TargetInfo
) -> Sequence[Problem]:
    """Return everything that is wrong."""
    if draft is None:
        message = "an MLP speculator is a checkpoint of its own, and none was given"
        return [Problem(key="model", message=message, next_step="give its folder, file or hub id as model")]
    reading = SpeculatorReader(draft, target)
    layout = reading.layout()
    problems = [*reading.problems]
    if layout is not None:
        problems += problems_of_form(options, reading, layout)
    if is_tree(options) and config.draft_sample_method == "probabilistic":
        message = "a tree keeps the likeliest sequences, so its ids are not drawn from a law"
        problems.append(Problem(key="draft_sample_method", message=message, next_step="use greedy, or chains"))
    return problems
