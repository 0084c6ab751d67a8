"""Where the hooks of `hydra` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class HydraPlugin:
    """Hydra heads, with a prefix layer (Hydra++) and without; chains and static trees."""

    specdec_method_options = hook_from("specdec_plugin_hydra.options:HydraOptions")
    specdec_detect_method = hook_from("specdec_plugin_hydra.detection:detect")
    specdec_method_traits = hook_from("specdec_plugin_hydra.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_hydra.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_hydra.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_hydra.building:make")


plugin = HydraPlugin()
