"""Where the hooks of `combine` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class CombinePlugin:
    """Drafts of several methods, put together by a rule."""

    specdec_method_options = hook_from("specdec_plugin_combine.options:CombineOptions")
    specdec_method_parts = hook_from("specdec_plugin_combine.options:parts_of")
    specdec_method_traits = hook_from("specdec_plugin_combine.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_combine.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_combine.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_combine.proposer:make")


plugin = CombinePlugin()
