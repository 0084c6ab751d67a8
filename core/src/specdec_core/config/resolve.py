"""Settles a speculative configuration: method, checkpoint, keys, traits, k and verifier, each with its reason."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from specdec_core.config.checks import check_checkpoint, check_draws, check_shape
from specdec_core.config.deprecated_keys import replace_deprecated_keys
from specdec_core.config.derived_values import (
    K,
    check_k,
    decide_max_model_len,
    decide_noise,
    decide_revision,
    decide_slots,
    decide_tensor_parallel,
    note_limits,
)
from specdec_core.config.detect import detect, swap_target
from specdec_core.config.drafts import card_defaults, draft_meant
from specdec_core.config.foreign_keys import foreign_problems
from specdec_core.config.options import MethodOptions, keys_of, options_model, validate
from specdec_core.config.parts import resolve_parts
from specdec_core.config.resolution import Resolution, data_of, find_controller, find_observers, method_of
from specdec_core.config.speculative import COUPLED, STANDARD, ResolvedConfig, SpeculativeConfig, config_error
from specdec_core.config.unclaimed_keys import decide_other_keys
from specdec_core.errors import CheckStageError, ConfigError, TraitsStageError
from specdec_core.registry.catalog import Catalog, Record
from specdec_core.registry.homes import nearest_name
from specdec_core.registry.loaded import LoadedPlugin
from specdec_core.registry.loader import Registry
from specdec_core.sources import Default, DraftSource, Note, Problem, TargetInfo
from specdec_core.traits import MethodTraits

__all__ = ["resolve", "swap_target"]

_AUTHORS: Final = "Tell the authors of the plugin."
_VERIFIER: Final = "rejection_sample_method"


def resolve(
    config: Any,
    target: TargetInfo,
    registry: Registry,
    host_keys: Iterable[str] = (),
    *,
    host_has_methods: bool = False,
) -> ResolvedConfig:
    """Settle a configuration, in any form that `SpeculativeConfig.parse` reads, for a target.

    A method that is named is loaded alone; without one, `model` may be the name of a method, and otherwise every
    proposer is asked what the checkpoint is. A path is never evidence. `host_keys` are keys, none of them common, that
    the host acts on itself; their values are in `ResolvedConfig.host_keys` as they were given. With `host_has_methods`,
    what is wrong for the plugin's own drafter alone is no error but in `ResolvedConfig.drafter_problems`, for a host
    that may run the method by itself and must look there before it makes a proposer. Raises ConfigError
    listing everything that is wrong at once (UnknownNameError and ConflictError are of that class), or the PluginError
    of a plugin that failed, its cause chained. Nothing stays loaded in the registry but what was selected.
    """
    read, problems = SpeculativeConfig.read(config)
    resolution = Resolution(read, target, registry, problems, host_keys)
    resolution.host_has_methods = host_has_methods
    resolution.resolve_part = lambda part: resolve(part, target, registry)
    replace_deprecated_keys(resolution)
    plugin, draft = _method(resolution)
    draft = draft or _default_draft(resolution, plugin)
    decide_revision(resolution, draft)
    draft = _override(resolution, plugin, draft)
    model = options_model(registry, plugin, "specdec_method_options")
    options = _options(resolution, model, plugin.name)
    traits = MethodTraits()
    if options is not None:
        resolution.parts = resolve_parts(resolution, plugin, options)
        _fill_defaults(resolution, plugin, options, draft)
        traits = _traits(resolution, plugin, options, draft)
        if check_checkpoint(resolution, plugin.name, traits, draft):
            ctx = resolution.context(plugin, options, draft)
            _note_problems(resolution, plugin, "specdec_check", ctx=ctx)
        check_k(resolution, plugin.name, traits)
        check_draws(resolution, plugin.name, traits)
        check_shape(resolution, plugin.name, traits)
    max_model_len = decide_max_model_len(resolution, traits)
    tensor_parallel_size = decide_tensor_parallel(resolution, traits)
    slots, extra_slots = decide_slots(resolution, traits)
    note_limits(resolution)
    verifier = _verifier(resolution, plugin, traits if options is not None else None)
    verifier_model = options_model(registry, verifier, "specdec_verifier_options") if verifier else MethodOptions
    verifier_options = _options(resolution, verifier_model, verifier.name if verifier else "")
    if options is not None and verifier is not None and verifier_options is not None:
        arguments = {"config": resolution.config, "options": verifier_options}
        _note_problems(resolution, verifier, "specdec_verifier_check", traits=traits, **arguments)
    controller = find_controller(resolution)
    controller_model = options_model(registry, controller, "specdec_method_options") if controller else MethodOptions
    controller_options = _options(resolution, controller_model, controller.name if controller else "")
    observers = find_observers(resolution)
    acted_on = decide_other_keys(resolution, plugin, verifier, (model, verifier_model, controller_model))
    resolution.finish()
    if options is None or verifier is None or verifier_options is None:
        raise AssertionError(resolution.problems)  # finish() has raised
    lossy = _flag(resolution, verifier, "specdec_verifier_is_lossy")
    if lossy:
        resolution.decide("lossy", True, f"the verifier {verifier.name} changes the target's distribution")
    emits_host_draws = _flag(resolution, verifier, "specdec_verifier_emits_host_draws")
    decide_noise(resolution, verifier.name, traits, emits_host_draws=emits_host_draws)
    return ResolvedConfig(
        method=plugin.name,
        record=data_of(plugin),
        config=resolution.config,
        options=options,
        traits=traits,
        draft=draft,
        num_speculative_tokens=resolution.config.num_speculative_tokens or 0,
        max_model_len=max_model_len,
        draft_tensor_parallel_size=tensor_parallel_size,
        num_lookahead_slots=slots,
        extra_slots=extra_slots,
        verifier=verifier.name,
        verifier_record=data_of(verifier),
        verifier_options=verifier_options,
        verifier_lossy=lossy,
        emits_host_draws=emits_host_draws,
        controller=controller.name if controller else None,
        controller_record=data_of(controller) if controller else None,
        controller_options=controller_options if controller else None,
        observers=tuple(map(data_of, observers)),
        host_keys=acted_on,
        drafter_problems=tuple(resolution.drafter_problems),
        decisions=tuple(resolution.decisions),
        parts=resolution.parts,
    )


def _method(resolution: Resolution) -> tuple[LoadedPlugin, DraftSource | None]:
    """Choose and load the method; return it with its checkpoint as given."""
    config, registry = resolution.config, resolution.registry
    catalog, name, model = registry.catalog, config.method, config.model
    if resolution.is_wrong("method") or (name is None and resolution.is_wrong("model")):
        resolution.finish()
    named = method_of(catalog, model)
    if name is None and model is None:
        if strange := foreign_problems(config.other_keys):
            raise config_error(strange)
        meant = [(key, near) for key in config.other_keys if (near := nearest_name(key, ("method", "model")))]
        typo = f" but {meant[0][0]!r} (did you mean {meant[0][1]!r}?)" if meant else ""
        message = f'name a "method"; installed: {", ".join(catalog.names("proposer")) or "none"}'
        raise ConfigError(f"speculative_config cannot be used: it has neither method nor model{typo}; {message}")
    draft = draft_meant(resolution) if model is not None and named is None else None
    if name is not None:
        record, reason = catalog.find("proposer", name), "named by the configuration"
        if record.name != name:
            reason += f", as {name!r}"
    elif named is not None:
        record, reason = catalog.find("proposer", named), f"model {model!r} is the name of a method"
    elif draft is not None:
        record, evidence = detect(draft, registry)
        reason = f"detected from the checkpoint, {evidence}"
    else:
        raise AssertionError(config)
    resolution.decide("method", record.name, f"{reason}; {record.distribution} {record.version}")
    if named is not None and not _is_own_name(catalog, named, record):
        resolution.problem("model", f"{model!r} names another method than {record.name!r}", "leave model out")
    return registry.load(record), draft


def _is_own_name(catalog: Catalog, named: str, record: Record) -> bool:
    return named == record.name or catalog.find("proposer", named).name == record.name


def _default_draft(resolution: Resolution, plugin: LoadedPlugin) -> DraftSource | None:
    """Return the checkpoint that the method has where none is named, None if it has none."""
    hook = "specdec_default_model"
    target = resolution.target
    said = None if resolution.is_wrong("model") else resolution.call(plugin, hook, target=target)
    if said is None:
        return None
    if not isinstance(said, Default) or said.key != "model" or not isinstance(said.value, str):
        raise CheckStageError(plugin.record, f"{hook} gave {said!r}, which is no Default of model", _AUTHORS)
    revision = target.revision if said.value == target.model else None
    draft = DraftSource(said.value, revision=resolution.config.revision or revision)
    try:
        _ = draft.hf_config
    except ConfigError as error:
        message = f"{plugin.name} cannot read {said.value!r} ({said.reason}): {error}; name its checkpoint as model"
        raise ConfigError(message) from error
    resolution.decide("model", said.value, said.reason)
    return draft


def _override(resolution: Resolution, plugin: LoadedPlugin, draft: DraftSource | None) -> DraftSource | None:
    """Apply the method's patch to a copy of the checkpoint's config.json."""
    hook = "specdec_override_hf_config"
    if draft is None or hook not in plugin.hooks:
        return draft
    copied = copy.deepcopy(dict(draft.hf_config))  # a plugin that writes into it changes nothing
    patch = resolution.call(plugin, hook, hf_config=copied, target=resolution.target)
    if patch is None:
        return draft
    if not hasattr(patch, "keys"):
        raise CheckStageError(plugin.record, f"{hook} returned {type(patch).__name__}, not a mapping", _AUTHORS)
    if patch:
        resolution.decide("hf_config", dict(patch), f"config.json is read this way by {plugin.name}")
    return draft.patched(patch)


def _options(resolution: Resolution, model: type[MethodOptions], owner: str) -> MethodOptions | None:
    """Validate the keys that the model reads; None, and problems noted, if they do not fit."""
    keys = keys_of(model)
    given = {key: value for key, value in copy.deepcopy(resolution.config.other_keys).items() if key in keys}
    common = {
        key: getattr(resolution.config, key)
        for key in model.model_fields
        if key in type(resolution.config).model_fields
    }
    given.update({key: value for key, value in common.items() if value is not None})
    options, problems = validate(model, given)
    resolution.problems.extend(problems)
    if options is not None:
        for key in options.model_fields_set:
            if key in given:
                resolution.decide(key, getattr(options, key), f"given; an option of {owner}")
    return options


def _fill_defaults(
    resolution: Resolution, plugin: LoadedPlugin, options: MethodOptions, draft: DraftSource | None
) -> None:
    """Fill in common keys that the user left out and the method has values for."""
    hook = "specdec_method_defaults"
    config = resolution.config
    said = _listed(resolution, plugin, hook, ctx=resolution.context(plugin, options, draft))
    if config.num_speculative_tokens is not None:
        resolution.decide(K, config.num_speculative_tokens, "given")
    for default in (*said, *card_defaults(draft)):
        known = isinstance(default, Default) and default.key in type(config).model_fields
        if not known or default.key in ("method", "model", "revision", "other_keys"):
            problem = f"{hook} gave {default!r}, which is no Default of a common key"
            raise CheckStageError(plugin.record, problem, _AUTHORS)
        if getattr(resolution.config, default.key) or resolution.is_wrong(default.key):
            continue
        filled, problems = SpeculativeConfig.read({**resolution.config.as_json(), default.key: default.value})
        if problems:
            raise CheckStageError(plugin.record, f"{hook} gave {default!r}: {problems[0]}", _AUTHORS)
        resolution.config = filled
        resolution.decide(default.key, default.value, default.reason)
    if resolution.config.num_speculative_tokens is None and not resolution.is_wrong(K):
        message = f"is required: {plugin.name} has no default for it here"
        resolution.problem(K, message, "give the most tokens to draft in a step")


def _traits(
    resolution: Resolution, plugin: LoadedPlugin, options: MethodOptions, draft: DraftSource | None
) -> MethodTraits:
    hook = "specdec_method_traits"
    traits = resolution.call(plugin, hook, "traits", ctx=resolution.context(plugin, options, draft))
    if traits is None:
        return MethodTraits()
    if not isinstance(traits, MethodTraits):
        raise TraitsStageError(plugin.record, f"{hook} returned {type(traits).__name__}, not MethodTraits", _AUTHORS)
    return traits


def _note_problems(resolution: Resolution, plugin: LoadedPlugin, hook: str, **arguments: Any) -> None:
    """Ask a plugin what is wrong, and how it read what can be read in several ways."""
    said = _listed(resolution, plugin, hook, **arguments)
    problems = [part for part in said if not isinstance(part, Note)]
    for note in said:
        if isinstance(note, Note):
            resolution.decide(note.key, note.value, note.reason)
    if not all(isinstance(problem, Problem) for problem in problems):
        raise CheckStageError(plugin.record, f"{hook} returned {problems!r}, not Problem objects", _AUTHORS)
    apart = [p for p in problems if p.drafter_only and resolution.host_has_methods]
    resolution.drafter_problems.extend(apart)
    resolution.problems.extend(p for p in problems if p not in apart)


def _listed(resolution: Resolution, plugin: LoadedPlugin, hook: str, **arguments: Any) -> tuple[Any, ...]:
    """Call a hook that returns several things, in a list or by yielding them; none if it returns None."""
    said = resolution.call(plugin, hook, **arguments)
    if said is None or isinstance(said, list | tuple):
        return tuple(said or ())
    problem = f"{hook} returned {type(said).__name__}, not a list or a tuple"
    raise CheckStageError(plugin.record, problem, _AUTHORS)


def _verifier(resolution: Resolution, plugin: LoadedPlugin, traits: MethodTraits | None) -> LoadedPlugin | None:
    """Choose and load the verifier; None, and the problem noted, if it cannot be had."""
    name = resolution.config.rejection_sample_method
    if resolution.is_wrong(_VERIFIER) or (name is None and traits is None):
        return None
    reason = "given"
    fits_coupled = traits is None or traits.draft_distribution == "deterministic" or traits.shares_noise
    if name is None and fits_coupled:
        name, reason = COUPLED, "the default where drafts can equal the target's own draws"
    elif name is None:
        name, reason = STANDARD, "the default for drafts that are drawn independently of the target's noise"
    record = resolution.find("verifier", name, _VERIFIER)
    if record is None:
        return None
    if record.name == COUPLED and not fits_coupled:
        message = f"{name!r} accepts a draft only if it equals the target's own draw, and {plugin.name} draws its own"
        step = f"use {STANDARD!r}, or draft_sample_method 'greedy'"
        resolution.problem(_VERIFIER, message, step)
    if record.name != name.rpartition(":")[2]:
        reason += f", as {name!r}"
    resolution.decide(_VERIFIER, record.name, f"{reason}; {record.distribution} {record.version}")
    return resolution.registry.load(record)


def _flag(resolution: Resolution, verifier: LoadedPlugin, hook: str) -> bool:
    """Return what a verifier's plugin reports of it by a hook; False where there is no hook."""
    found = resolution.call(verifier, hook, "traits")
    if found is not None and not isinstance(found, bool):
        raise TraitsStageError(verifier.record, f"{hook} returned {found!r}, not a bool", _AUTHORS)
    return bool(found)
