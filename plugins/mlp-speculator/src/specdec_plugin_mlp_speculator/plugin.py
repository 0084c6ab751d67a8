"""Where the hooks of `mlp_speculator` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class MlpSpeculatorPlugin:
    """Speculators of fms-extras in all variants, tied or not; chains, and trees of the likeliest sequences."""

    specdec_method_options = hook_from("specdec_plugin_mlp_speculator.options:MlpSpeculatorOptions")
    specdec_detect_method = hook_from("specdec_plugin_mlp_speculator.detection:detect")
    specdec_override_hf_config = hook_from("specdec_plugin_mlp_speculator.settings:patch_of")
    specdec_method_traits = hook_from("specdec_plugin_mlp_speculator.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_mlp_speculator.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_mlp_speculator.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_mlp_speculator.building:make")


plugin = MlpSpeculatorPlugin()
