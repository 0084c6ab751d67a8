"""Where the hooks of `kangaroo` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class KangarooPlugin:
    """Drafts of the target's own first layers, through a trained adapter and the target's head."""

    specdec_method_options = hook_from("specdec_plugin_kangaroo.options:KangarooOptions")
    specdec_detect_method = hook_from("specdec_plugin_kangaroo.detection:detect")
    specdec_method_traits = hook_from("specdec_plugin_kangaroo.traits:traits_of")
    specdec_method_defaults = hook_from("specdec_plugin_kangaroo.traits:defaults_of")
    specdec_check = hook_from("specdec_plugin_kangaroo.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_kangaroo.building:make")


plugin = KangarooPlugin()
