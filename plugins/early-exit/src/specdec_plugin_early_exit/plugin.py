"""Where the hooks of `early_exit` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class EarlyExitPlugin:
    """Drafts of the target's own first layers, through its final norm and its head."""

    specdec_method_options = hook_from("specdec_plugin_early_exit.options:EarlyExitOptions")
    specdec_method_traits = hook_from("specdec_plugin_early_exit.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_early_exit.traits:defaults_of")
    specdec_detect_method = hook_from("specdec_plugin_early_exit.exit_layer:detect")
    specdec_check = hook_from("specdec_plugin_early_exit.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_early_exit.proposer:make")


plugin = EarlyExitPlugin()
