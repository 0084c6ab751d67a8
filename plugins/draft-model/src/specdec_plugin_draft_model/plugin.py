"""Where the hooks of `draft_model` are; imports none of them."""

from __future__ import annotations

from specdec_core.late_hooks import hook_from


class DraftModelPlugin:
    """A causal language model as the drafter of a larger one."""

    specdec_method_options = hook_from("specdec_plugin_draft_model.options:DraftModelOptions")
    specdec_method_traits = hook_from("specdec_plugin_draft_model.traits:traits_of")
    specdec_detect_method = hook_from("specdec_plugin_draft_model.detection:detect")
    specdec_check = hook_from("specdec_plugin_draft_model.traits:problems_of")
    specdec_make_proposer = hook_from("specdec_plugin_draft_model.building:make")
    specdec_vllm_config = hook_from("specdec_plugin_draft_model.vllm_keys:vllm_config", optionalhook=True)


plugin = DraftModelPlugin()
