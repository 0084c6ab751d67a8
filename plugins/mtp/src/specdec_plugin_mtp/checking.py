"""Everything that speaks against drafting with the MTP modules of a checkpoint, in words; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specdec_core.config.rope import rope_problem
from specdec_core.context import MethodContext
from specdec_core.errors import ConfigError
from specdec_core.sources import Problem, TargetInfo
from specdec_nn.checkpoints.reader import listed
from specdec_plugin_mtp import speculators
from specdec_plugin_mtp.assistant.layout import AssistantReader
from specdec_plugin_mtp.fields import INDEX_SHARE
from specdec_plugin_mtp.options import MtpOptions
from specdec_plugin_mtp.reading import Reading
from specdec_plugin_mtp.shapes import LISTED

OTHER_METHOD = "leave model out for the target's own modules, or name the method that this checkpoint is for"


def problems_of(ctx: MethodContext[MtpOptions]) -> Sequence[Problem]:
    """Return everything that is wrong."""
    if ctx.draft is None:
        message = "MTP modules are in the target's own checkpoint, and the target came without one"
        return [Problem(key="model", message=message, next_step="give the target's folder or hub id as model")]
    found = _of_checkpoint(Reading.of(ctx.draft), ctx.options, ctx.target)
    return [*found, *_of_options(ctx.options)]


def _of_options(options: MtpOptions) -> Iterator[Problem]:
    if options.index_share_for_mtp_iteration:
        message = "true given, and the attention of no family that drafts here has indices to share"
        yield Problem(key=INDEX_SHARE, message=message, next_step="leave it out", drafter_only=True)


def _of_checkpoint(reading: Reading, options: MtpOptions, target: TargetInfo) -> Sequence[Problem]:
    family, model = reading.family, reading.source.model
    step = OTHER_METHOD if model != target.model else "name another method"
    if family is None:
        message = f"{model!r} is of no family with MTP modules ({reading.described()}), and the method is mtp"
        return [Problem(key="model", message=message, next_step=step)]
    if family.why_not:
        message = f"mtp does not draft for {family.title} ({reading.described()}): {family.why_not}"
        return [Problem(key="method", message=message, drafter_only=family.vllm_drafts)]
    if family.reads == "keys":
        return AssistantReader(reading.source, target).all_problems()
    if options.assistant_position is not None:
        message = f"{options.assistant_position!r} given, and {family.title} is no family of assistants"
        return [Problem(key="assistant_position", message=message, next_step="leave it out")]
    own_file = _of_speculators(reading)
    if own_file is not None:
        return [Problem(key="model", message=own_file, next_step="give a file with one whole layer")]
    number, key = reading.said
    if number is not None and reading.n_predict is None:
        message = f"{key} of {model!r} is {number!r}, so it has no MTP modules"
        return [Problem(key="model", message=message, next_step=step)]
    differs = reading.differs(target)
    if differs:
        message = f"the MTP modules of {model!r} are for another target: {'; '.join(differs)}"
        return [Problem(key="model", message=message, next_step=OTHER_METHOD)]
    unfit = rope_problem(reading.text) or (family.unfit and family.unfit(reading.text))
    if unfit:
        message = f"no MTP modules can be made of {model!r}: {unfit}"
        return [Problem(key="model", message=message, next_step=step, drafter_only=family.vllm_drafts)]
    return _of_tensors(reading, options, target, step)


def _of_speculators(reading: Reading) -> str | None:
    """Return what is wrong with a file of speculators' type mtp in particular, None if nothing is or for others."""
    config, model = reading.source.hf_config, reading.source.model
    if not speculators.is_speculators(config):
        return None
    try:
        found = speculators.problem(config, reading.source.tensor_names)
    except ConfigError as error:
        return str(error)
    return None if found is None else f"{model!r} cannot draft: {found}"


def _of_tensors(reading: Reading, options: MtpOptions, target: TargetInfo, step: str) -> Sequence[Problem]:
    """Return what is missing of the modules that would run, or does not fit the target."""
    modules = reading.n_predict or 1
    running = range(modules if options.recurrence(modules) == "modules" else 1)
    try:
        missing = [name for module in running for name in reading.lacks(module)]
        strange = None if missing else next(filter(None, map(reading.quantised, running)), None)
        misfits = dict.fromkeys(text for i in running for text in reading.misfits(i, target))
    except ConfigError as error:
        return [Problem(key="model", message=str(error))]
    if missing:
        message = f"{reading.source.model!r} lacks tensors of its MTP modules: {', '.join(missing)}"
        return [Problem(key="model", message=message, next_step=f"give a checkpoint that has them, or {step}")]
    if strange is not None:
        message = f"MTP modules of {reading.source.model!r} are {strange}"
        is_ours = reading.family is not None and reading.family.vllm_drafts
        return [Problem(key="model", message=message, next_step=step, drafter_only=is_ours)]
    if misfits:
        message = f"the MTP modules of {reading.source.model!r} cannot draft: {listed(misfits, LISTED)}"
        return [Problem(key="model", message=message, next_step=f"give a checkpoint that fits the target, or {step}")]
    return []
