"""Asks proposer plugins what a checkpoint is: which method it belongs to, or which target it stands for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from specdec_core.config.resolution import method_of
from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import CheckStageError, ConfigError, PluginWarning
from specdec_core.registry.asking import Answer, ask, load_as
from specdec_core.registry.catalog import LOCAL_DISTRIBUTION, Record
from specdec_core.registry.drafts import meant
from specdec_core.registry.loader import Registry
from specdec_core.sources import Detection, DraftSource, TargetSwap

STRENGTHS: Final = ("possible", "likely", "certain")
_AUTHORS: Final = "Tell the authors of the plugin."


@dataclass
class Survey:
    """What the plugins said: detections with their records, and what could not be asked and why."""

    detections: list[tuple[Record, Detection]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def detect(draft: DraftSource, registry: Registry) -> tuple[Record, str]:
    """Return the record of the one method that claims the checkpoint most strongly, and the evidence in a sentence.

    Every installed proposer is asked in a child process (`specdec_core.registry.asking`), so that none of them is
    imported here; one that fails is warned about. Raises ConfigError listing all claims and their evidence if none or
    several are strongest.
    """
    _ = draft.hf_config  # what cannot be read at all is reported once, not by every plugin
    survey = _survey(draft, registry)
    best = max((STRENGTHS.index(claim.strength) for _, claim in survey.detections), default=-1)
    strongest = [each for each in survey.detections if STRENGTHS.index(each[1].strength) == best]
    if len({(record.distribution, claim.method) for record, claim in strongest}) == 1:
        record, claim = strongest[0]
        weaker = [f"{other.method} ({other.strength})" for _, other in survey.detections if other is not claim]
        return record, _evidence(claim) + (f"; weaker: {', '.join(weaker)}" if weaker else "")
    raise _undecided(draft, registry, survey, [claim for _, claim in strongest])


def swap_target(source: DraftSource, registry: Registry) -> TargetSwap | None:
    """Return the pair of target and draft that a draft checkpoint given as the model stands for, None if it is none.

    Every installed proposer is asked, as in `detect`. Raises ConfigError if two answers differ, or if the source cannot
    be read.
    """
    _ = source.hf_config
    swaps: list[tuple[str, TargetSwap]] = []
    for answer in ask("swap", registry.catalog.of_kind("proposer"), registry, source):
        _note_problem([], answer)
        swap = None if answer.said is None else TargetSwap(**answer.said)
        if swap is not None and all(swap != known for _, known in swaps):
            swaps.append((answer.record.name, swap))
    if len(swaps) > 1:
        listed = "; ".join(f"{name}: {swap.model!r} ({swap.reason})" for name, swap in swaps)
        message = f"{source.model!r} stands for more than one pair: {listed}; give model and speculative_config apart"
        raise ConfigError(message)
    return swaps[0][1] if swaps else None


def load_target_as(
    source: DraftSource, config: SpeculativeConfig | None, registry: Registry
) -> tuple[str, Mapping[str, Any]] | None:
    """Return a method that knows a target of an unknown type, and its keys for it; None if none does.

    The method that the configuration means is asked first; then, and without speculation, every installed proposer, as
    in `detect`. Raises ConfigError if the configuration names no method and its checkpoint is nobody's, if two methods
    answer differently, or if the target cannot be read; and the PluginError of the meant plugin if it fails.
    """
    meant = None if config is None else _meant_load_target_as(source, config, registry)
    if meant is not None:
        return meant
    found: list[tuple[str, Mapping[str, Any]]] = []
    for answer in ask("load_as", registry.catalog.of_kind("proposer"), registry, source):
        _note_problem([], answer)
        if answer.said and all(answer.said != known for _, known in found):
            found.append((answer.record.name, answer.said))
    if len(found) > 1:
        message = f"{source.model!r} would be loaded differently by {', '.join(name for name, _ in found)}"
        raise ConfigError(message)
    return found[0] if found else None


def _meant_load_target_as(
    source: DraftSource, config: SpeculativeConfig, registry: Registry
) -> tuple[str, Mapping[str, Any]] | None:
    name = config.method or method_of(registry.catalog, config.model)
    if name is None and config.model is None:
        return None
    if name is not None:
        record = registry.catalog.find("proposer", name)
    else:
        model = meant(registry.catalog, config.model or "").model
        record, _ = detect(DraftSource(model, revision=config.revision), registry)
    own = registry.scratch()
    keys = load_as(own, own.load(record), source)
    return (record.name, keys) if keys else None


def _survey(draft: DraftSource, registry: Registry) -> Survey:
    survey = Survey()
    for answer in ask("detect", registry.catalog.of_kind("proposer"), registry, draft):
        _note_problem(survey.broken, answer)
        if answer.said is None:
            continue
        claim = Detection(**{**answer.said, "evidence": tuple(answer.said["evidence"])})
        record = _record_of(answer.record, claim, registry)
        if record is not None:
            survey.detections.append((record, claim))
            continue
        offers = f"it claims a method {claim.method!r} with strength {claim.strength!r}, and does not offer that"
        _note(survey.broken, str(CheckStageError(answer.record, offers, _AUTHORS)))
    return survey


def _note_problem(broken: list[str], answer: Answer) -> None:
    """Note what went wrong; an unpackaged plugin that does not load as a proposer may be something else."""
    if answer.problem and (answer.loaded or answer.record.distribution != LOCAL_DISTRIBUTION):
        _note(broken, answer.problem)


def _note(broken: list[str], problem: str) -> None:
    broken.append(problem)
    warnings.warn(problem, PluginWarning, stacklevel=6)


def _record_of(asked: Record, claim: Detection, registry: Registry) -> Record | None:
    """Return the record under which the plugin offers the method it claims."""
    if claim.strength not in STRENGTHS:
        return None
    for record in registry.catalog.of_kind("proposer"):
        same = (record.distribution, record.value) == (asked.distribution, asked.value)
        if same and record.name == claim.method:
            return record
    return None


def _evidence(claim: Detection) -> str:
    return f"{claim.strength}: {', '.join(claim.evidence) or 'no evidence given'}"


def _undecided(draft: DraftSource, registry: Registry, survey: Survey, strongest: list[Detection]) -> ConfigError:
    config = draft.hf_config
    seen = f"architectures {list(draft.architectures)}, model_type {config.get('model_type')!r}"
    if strongest:
        claims = "; ".join(f"{claim.method}: {_evidence(claim)}" for _, claim in survey.detections)
        what = f"{len(strongest)} methods claim {draft.model!r} equally ({claims})"
    else:
        installed = ", ".join(registry.catalog.names("proposer")) or "none"
        what = f"no installed method recognises {draft.model!r} ({seen}); installed: {installed}"
    broken = f"; not asked, as they failed: {'; '.join(survey.broken)}" if survey.broken else ""
    return ConfigError(f'{what}{broken}; name one with "method"')
