"""Where the hooks of `medusa` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class MedusaPlugin:
    """Medusa heads of both generations of files, alone or inside the target's checkpoint; chains and static trees."""

    specdec_method_options = hook_from("specdec_plugin_medusa.options:MedusaOptions")
    specdec_default_model = hook_from("specdec_plugin_medusa.detection:default_model_of")
    specdec_detect_method = hook_from("specdec_plugin_medusa.detection:detect")
    specdec_override_hf_config = hook_from("specdec_plugin_medusa.settings:patch_of")
    specdec_method_traits = hook_from("specdec_plugin_medusa.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_medusa.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_medusa.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_medusa.building:make")
    specdec_make_trainer = hook_from("specdec_plugin_medusa.training.recipe:training_of")


plugin = MedusaPlugin()
