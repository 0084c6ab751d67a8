"""Where the hooks of `suffix` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class SuffixPlugin:
    """Suffix decoding: drafts from the request's own text and from the responses of others."""

    specdec_method_options = hook_from("specdec_plugin_suffix.options:SuffixOptions")
    specdec_request_options = hook_from("specdec_plugin_suffix.options:SuffixRequestOptions")
    specdec_method_traits = hook_from("specdec_plugin_suffix.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_suffix.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_suffix.checking:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_suffix.proposer:make")
    specdec_expected_failures = hook_from("specdec_plugin_suffix.traits:expected_failures")


plugin = SuffixPlugin()
