"""From a resolved configuration to a controller; knows nothing of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from specdec_plugin_controllers.adaptive import Adaptive
from specdec_plugin_controllers.confidence import Confidence
from specdec_plugin_controllers.goodput import Goodput
from specdec_plugin_controllers.places import Places

if TYPE_CHECKING:
    from specdec_core.config.speculative import ResolvedConfig
    from specdec_core.protocols import Controller
    from specdec_plugin_controllers.options import AdaptiveOptions, ControllerOptions


def make(name: str, config: ResolvedConfig, options: ControllerOptions) -> Controller:
    """Return the controller of that name."""
    if name == "confidence":
        return Confidence(options.controller_probe_every)
    places = Places(config.num_speculative_tokens, whole=config.traits.shape == "tree")
    if name == "goodput":
        return Goodput(places, options.controller_probe_every)
    hysteresis = cast("AdaptiveOptions", options).controller_hysteresis
    return Adaptive(places, options.controller_probe_every, hysteresis)
