"""The hooks of `adaptive`, `confidence` and `goodput`; imports neither pydantic nor numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig
    from specdec_core.protocols import Controller
    from specdec_plugin_controllers.options import ControllerOptions


class ControllersPlugin:
    """Three controllers, each for every method."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        from specdec_plugin_controllers import options

        return options.AdaptiveOptions if method == "adaptive" else options.ControllerOptions

    @hookimpl
    def specdec_make_controller(self, method: str, config: ResolvedConfig, options: ControllerOptions) -> Controller:
        from specdec_plugin_controllers.making import make

        return make(method, config, options)


plugin = ControllersPlugin()
