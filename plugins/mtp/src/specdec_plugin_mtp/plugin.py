"""Where the hooks of `mtp` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class MtpPlugin:
    """Multi-token-prediction modules inside the target's own checkpoint, of every family in `families`."""

    specdec_method_options = hook_from("specdec_plugin_mtp.options:MtpOptions")
    specdec_default_model = hook_from("specdec_plugin_mtp.traits:default_model_of")
    specdec_load_target_as = hook_from("specdec_plugin_mtp.overriding:keys_for_loading")
    specdec_override_hf_config = hook_from("specdec_plugin_mtp.overriding:patch_of")
    specdec_method_traits = hook_from("specdec_plugin_mtp.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_mtp.traits:defaults_of")
    specdec_detect_method = hook_from("specdec_plugin_mtp.detection:detect")
    specdec_swap_target = hook_from("specdec_plugin_mtp.detection:swap")
    specdec_check = hook_from("specdec_plugin_mtp.checking:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_mtp.building:make")
    specdec_make_trainer = hook_from("specdec_plugin_mtp.training.recipe:training_of")
    specdec_vllm_config = hook_from("specdec_plugin_mtp.vllm_keys:vllm_config", optionalhook=True)


mtp = MtpPlugin()
