"""Every hook of a plugin: what it gets, what it returns, when it fires. Hooks build objects; loops call methods.

A distribution registers one plugin object for all the methods it offers, so each hook is told the method: by name, or
as `ctx`, which is everything known of a configured one. Selected
plugins are called one by one and never by a broadcast, except the three observer hooks at the end. A hook may ask for
fewer arguments than are listed here. A missing hook means its default, stated with each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookspec

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, RequestOptions, ResolvedConfig, SpeculativeConfig
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Controller, Proposer, Verifier
    from specdec_core.registry.kernels import Kernels
    from specdec_core.sources import (
        Default,
        Detection,
        DraftSource,
        Note,
        Problem,
        TargetInfo,
        TargetSwap,
    )
    from specdec_core.stats import StepStats
    from specdec_core.training import HeadTraining
    from specdec_core.traits import MethodTraits


@hookspec(firstresult=True)
def specdec_method_options(method: str) -> type[MethodOptions] | None:
    """Return the pydantic model of the method's keys (frozen, unknown keys refused, every field described).

    Fires when a configuration is read. Field names are vLLM's key names where vLLM has the key. Default: no keys.
    A controller's keys are asked for with the same hook, `method` being the extension's name.
    """


@hookspec(firstresult=True)
def specdec_request_options(method: str) -> type[RequestOptions] | None:
    """Return the model of what one request may set in `SamplingParams.extra_args["specdec"]`. Default: nothing."""


@hookspec(firstresult=True)
def specdec_method_parts(method: str, options: MethodOptions) -> Sequence[Mapping[str, Any]] | None:
    """Return the configurations of the methods that this one is made of. Default: none.

    Each is resolved for the same target like a configuration of its own, with its decisions and its errors, and is in
    `MethodContext.parts` from then on. A part without `num_speculative_tokens` gets that of the whole, if it is given.
    """


@hookspec(firstresult=True)
def specdec_method_traits(ctx: MethodContext[Any]) -> MethodTraits | None:
    """Return what the method needs and gives under this configuration. Torch-free. Default: `MethodTraits()`.

    `ctx.config` has the common keys; its k may still be None, and `ctx.draft` too. What follows from traits alone (k,
    shared noise on trees, whether there is a checkpoint) is checked by the core.
    """


@hookspec(firstresult=True)
def specdec_method_defaults(ctx: MethodContext[Any]) -> Sequence[Default] | None:
    """Return values for common keys that the user left out, each with its reason. Default: none."""


@hookspec(firstresult=True)
def specdec_detect_method(draft: DraftSource) -> Detection | None:
    """Return whether the draft source belongs to a method of this plugin, with the evidence.

    Fires for every proposer plugin when the configuration names no method and `model` is not the name of one. Evidence
    is keys of config.json and tensor names; a path is never evidence. Default: None, "not mine".
    """


@hookspec(firstresult=True)
def specdec_default_model(method: str, target: TargetInfo) -> Default | None:
    """Return the checkpoint of a configuration that names none, such as the target's own, as a Default of `model`.

    Fires before all other questions about the checkpoint. Default: none, so that `draft` is None in them.
    """


@hookspec(firstresult=True)
def specdec_override_hf_config(
    method: str, hf_config: Mapping[str, Any], target: TargetInfo
) -> Mapping[str, Any] | None:
    """Return a patch for the draft's config.json, applied to a copy; None for no change. Asked of the chosen method."""


@hookspec(firstresult=True)
def specdec_swap_target(source: DraftSource) -> TargetSwap | None:
    """Turn a draft checkpoint that was given as the model into the pair of target and draft it stands for.

    Fires for every proposer plugin, in `specdec explain`, when the model's config.json is not one of a language model.
    Default: None.
    """


@hookspec(firstresult=True)
def specdec_load_target_as(method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return keys of config.json under which a host's library can load a target whose model_type it does not know.

    A key whose value is None is taken out. Fires before anything else, and only for such targets: for the method that
    the configuration means, and where that has no answer, or without speculation, for every proposer plugin. A method
    inside a target's checkpoint may know what its family is made like. Default: None; if nobody knows the type, the
    target cannot be loaded.
    """


@hookspec(firstresult=True)
def specdec_check(ctx: MethodContext[Any]) -> Sequence[Problem | Note] | None:
    """Return everything that is wrong with this pairing, all at once. Default: no problems.

    Not asked where traits declare a checkpoint needed and there is none. A `Note` among them is no problem but a
    decision: how something was read that has several readings.
    """


@hookspec(firstresult=True)
def specdec_make_proposer(ctx: MethodContext[Any], build: ProposerBuild) -> Proposer | None:
    """Build the proposer. Fires once per session, after the target is loaded. Heavy imports belong inside it."""


@hookspec(firstresult=True)
def specdec_verifier_options(method: str) -> type[MethodOptions] | None:
    """Return the model of the verifier's keys; `method` is the verifier's name. Default: no keys."""


@hookspec(firstresult=True)
def specdec_verifier_is_lossy(method: str) -> bool | None:
    """Return whether the verifier changes the target's distribution, as `explain` then shows. Default: False."""


@hookspec(firstresult=True)
def specdec_verifier_emits_host_draws(method: str) -> bool | None:
    """Return whether every emitted id is the host's own draw at its place, whatever the drafts are, as with `coupled`.

    The seed alone then fixes the text. Default: False, the drafts have a say in what is emitted; the host then keys all
    noise of a request by everything that its drafts may depend on.
    """


@hookspec(firstresult=True)
def specdec_verifier_check(
    method: str, config: SpeculativeConfig, options: MethodOptions, traits: MethodTraits
) -> Sequence[Problem] | None:
    """Return everything that is wrong with this verifier for these drafts, all at once. Default: no problems.

    `method` is the verifier's name, `options` are its own, `traits` are the proposer's.
    """


@hookspec(firstresult=True)
def specdec_make_verifier(
    method: str, config: ResolvedConfig, options: MethodOptions, traits: MethodTraits, kernels: Kernels
) -> Verifier | None:
    """Build the verifier; `method` is the verifier's name, `traits` are the proposer's."""


@hookspec(firstresult=True)
def specdec_make_controller(method: str, config: ResolvedConfig, options: MethodOptions) -> Controller | None:
    """Build a controller that the configuration names; `method` is the extension's name."""


@hookspec(firstresult=True)
def specdec_make_trainer(method: str) -> HeadTraining | None:
    """Return how heads of the method are trained: what can be chosen, which states are needed, what makes a trainer.

    Fires in `specdec train`, before the target is loaded. Default: None, the method's heads cannot be trained there.
    """


@hookspec(firstresult=True)
def specdec_expected_failures(method: str) -> Mapping[str, str] | None:
    """Return the checks of the conformance kit that the plugin is not meant to pass, each with the reason.

    `method` is the plugin's name, of whatever kind. `specdec plugins show` prints them, and the kit refuses an expected
    failure that is not among them. Default: none.
    """


@hookspec
def specdec_session_started(info: Mapping[str, Any]) -> None:
    """See that a session began; broadcast to the selected plugins. `info` is `ResolvedConfig.as_json()`."""


@hookspec
def specdec_step_finished(step: StepStats) -> None:
    """See one step; broadcast to the selected plugins, only if one of them implements it."""


@hookspec
def specdec_session_finished(summary: Mapping[str, Any]) -> None:
    """See the session's metrics at its end; broadcast to the selected plugins."""
