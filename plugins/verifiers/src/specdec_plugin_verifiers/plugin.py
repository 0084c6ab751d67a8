"""Where the hooks of the verifiers are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class VerifiersPlugin:
    """`coupled`, `standard` and `block`, which keep the target's distribution; `fly`, `synthetic` and `typical`."""

    specdec_verifier_options = hook_from("specdec_plugin_verifiers.options:options_of")
    specdec_verifier_is_lossy = hook_from("specdec_plugin_verifiers.checking:is_lossy")
    specdec_verifier_emits_host_draws = hook_from("specdec_plugin_verifiers.checking:emits_host_draws")
    specdec_verifier_check = hook_from("specdec_plugin_verifiers.checking:problems_of")
    specdec_make_verifier = hook_from("specdec_plugin_verifiers.building:make")


plugin = VerifiersPlugin()
