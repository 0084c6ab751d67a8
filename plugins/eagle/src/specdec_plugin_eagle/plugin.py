"""Where the hooks of `eagle` and `eagle3` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class EaglePlugin:
    """EAGLE-1 heads as `eagle`, EAGLE-3 and P-EAGLE heads as `eagle3`; chains, static and dynamic trees for each."""

    specdec_method_options = hook_from("specdec_plugin_eagle.options:EagleOptions")
    specdec_method_traits = hook_from("specdec_plugin_eagle.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_eagle.traits:defaults_of")
    specdec_detect_method = hook_from("specdec_plugin_eagle.detection:detect")
    specdec_swap_target = hook_from("specdec_plugin_eagle.detection:swap")
    specdec_override_hf_config = hook_from("specdec_plugin_eagle.speculators:patch_of")
    specdec_check = hook_from("specdec_plugin_eagle.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_eagle.building:make")
    specdec_make_trainer = hook_from("specdec_plugin_eagle.training.recipe:training_of")
    specdec_vllm_config = hook_from("specdec_plugin_eagle.vllm_keys:vllm_config", optionalhook=True)


plugin = EaglePlugin()
