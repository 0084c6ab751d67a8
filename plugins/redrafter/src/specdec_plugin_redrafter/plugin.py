"""Where the hooks of `redrafter` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class RedrafterPlugin:
    """Recurrent drafters in the files of Apple's code and of TensorRT-LLM; chains, and beams packed into trees."""

    specdec_method_options = hook_from("specdec_plugin_redrafter.options:RedrafterOptions")
    specdec_detect_method = hook_from("specdec_plugin_redrafter.detection:detect")
    specdec_method_traits = hook_from("specdec_plugin_redrafter.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_redrafter.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_redrafter.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_redrafter.building:make")


plugin = RedrafterPlugin()
