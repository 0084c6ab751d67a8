"""Where the hooks of `lookahead` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class LookaheadPlugin:
    """Lookahead decoding: the target guesses at later places, and n-grams of these guesses are drafted."""

    specdec_method_options = hook_from("specdec_plugin_lookahead.options:LookaheadOptions")
    specdec_method_traits = hook_from("specdec_plugin_lookahead.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_lookahead.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_lookahead.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_lookahead.proposer:make")


plugin = LookaheadPlugin()
