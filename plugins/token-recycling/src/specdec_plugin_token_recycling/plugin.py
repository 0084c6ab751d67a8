"""Where the hooks of `token_recycling` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class RecyclingPlugin:
    """Token recycling: drafts from what the target answered at earlier rows, rejected ones included."""

    specdec_method_options = hook_from("specdec_plugin_token_recycling.options:RecyclingOptions")
    specdec_request_options = hook_from("specdec_plugin_token_recycling.options:RecyclingRequestOptions")
    specdec_method_traits = hook_from("specdec_plugin_token_recycling.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_token_recycling.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_token_recycling.checking:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_token_recycling.proposer:make")
    specdec_expected_failures = hook_from("specdec_plugin_token_recycling.traits:expected_failures")


plugin = RecyclingPlugin()
