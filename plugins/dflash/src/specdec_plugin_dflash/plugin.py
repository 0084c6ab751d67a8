"""Where the hooks of `dflash` and `dspark` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class DFlashPlugin:
    """Heads that draft a block in one pass, as `dflash`; those with a Markov chain over the block, as `dspark`."""

    specdec_method_options = hook_from("specdec_plugin_dflash.options:options_of")
    specdec_method_traits = hook_from("specdec_plugin_dflash.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_dflash.traits:defaults_of")
    specdec_detect_method = hook_from("specdec_plugin_dflash.detection:detect")
    specdec_swap_target = hook_from("specdec_plugin_dflash.detection:swap")
    specdec_override_hf_config = hook_from("specdec_plugin_dflash.speculators:patch_of")
    specdec_check = hook_from("specdec_plugin_dflash.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_dflash.building:make")
    specdec_vllm_config = hook_from("specdec_plugin_dflash.vllm_keys:vllm_config", optionalhook=True)


plugin = DFlashPlugin()
