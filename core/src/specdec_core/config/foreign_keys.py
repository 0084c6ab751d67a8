"""Keys of other engines' speculative configurations, and the key that means the same here: data, beside `key_table`.

A key that a plugin has as an option of its own is the plugin's and is not looked up here. SGLang's are its server
arguments, with underscores for dashes; TensorRT-LLM's are the fields of its decoding configurations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from specdec_core.sources import Problem


@dataclass(frozen=True)
class Foreign:
    """A key of another engine.

    engine  whose key it is
    new     the key that means the same here, "" if there is none
    note    how the value changes, or why there is none
    """

    engine: str
    new: str
    note: str = ""

    def said(self) -> tuple[str, str]:
        """Return what is wrong with giving the key, and what to do."""
        message = f"a key of {self.engine}"
        if not self.new:
            return message, self.note
        what = f"the key that means the same here is {self.new!r}"
        return message, f"{what}; {self.note}" if self.note else what


def foreign_problems(keys: Iterable[str]) -> list[Problem]:
    """Return a problem for each key that is another engine's."""
    said = {key: FOREIGN[key].said() for key in keys if key in FOREIGN}
    return [Problem(key=key, message=message, next_step=step) for key, (message, step) in said.items()]


_SGLANG: Final = "SGLang"
_TENSORRT: Final = "TensorRT-LLM"
_NAMES: Final = (
    "names of methods are those of `specdec plugins list`, in lower case; without one, the method is found from the "
    "checkpoint in model"
)
_HERE: Final = "nothing here depends on it: leave it out"
_TREE: Final = "trees are set up by options of the method: see `specdec plugins show METHOD`"
_ADAPTIVE: Final = 'it chooses how much is drafted: "adaptive" of specdec-plugin-controllers'
_CHECKPOINT: Final = "it is read from the draft checkpoint: leave it out"
_REJECTION: Final = '"standard" for true; "coupled" compares drafts with the target\'s own draws'
_ACCEPT: Final = 'a lossy rule is chosen with "rejection_sample_method": "typical" and its options'

FOREIGN: Final[MappingProxyType[str, Foreign]] = MappingProxyType(
    {
        "speculative_algorithm": Foreign(_SGLANG, "method", _NAMES),
        "speculative_draft_model_path": Foreign(_SGLANG, "model"),
        "speculative_draft_model_revision": Foreign(_SGLANG, "revision"),
        "speculative_draft_model_quantization": Foreign(_SGLANG, "quantization"),
        "speculative_num_steps": Foreign(
            _SGLANG, "num_speculative_tokens", "for chains they are equal; for trees it counts nodes, not levels"
        ),
        "speculative_num_draft_tokens": Foreign(
            _SGLANG, "num_speculative_tokens", "SGLang counts the newest token, so give one less"
        ),
        "speculative_eagle_topk": Foreign(_SGLANG, "tree_top_k", "of methods with dynamic trees; for 1 leave it out"),
        "speculative_accept_threshold_single": Foreign(_SGLANG, "posterior_threshold", _ACCEPT),
        "speculative_accept_threshold_acc": Foreign(_SGLANG, "", _ACCEPT),
        "speculative_token_map": Foreign(_SGLANG, "", "a reduced vocabulary is read from the draft checkpoint"),
        "speculative_attention_mode": Foreign(_SGLANG, "", _HERE),
        "speculative_draft_attention_backend": Foreign(_SGLANG, "", _HERE),
        "speculative_moe_runner_backend": Foreign(_SGLANG, "", _HERE),
        "speculative_moe_a2a_backend": Foreign(_SGLANG, "", _HERE),
        "speculative_skip_dp_mlp_sync": Foreign(_SGLANG, "", _HERE),
        "speculative_draft_load_format": Foreign(_SGLANG, "", "formats are found from the files: leave it out"),
        "speculative_draft_window_size": Foreign(_SGLANG, "", _CHECKPOINT),
        "speculative_dflash_block_size": Foreign(_SGLANG, "", _CHECKPOINT),
        "speculative_dflash_draft_window_size": Foreign(_SGLANG, "", _CHECKPOINT),
        "enable_multi_layer_eagle": Foreign(_SGLANG, "", _CHECKPOINT),
        "speculative_use_rejection_sampling": Foreign(_SGLANG, "rejection_sample_method", _REJECTION),
        "speculative_adaptive": Foreign(_SGLANG, "controller", _ADAPTIVE),
        "speculative_adaptive_config": Foreign(_SGLANG, "controller", _ADAPTIVE),
        "speculative_ngram_min_match_window_size": Foreign(_SGLANG, "prompt_lookup_min"),
        "speculative_ngram_max_match_window_size": Foreign(_SGLANG, "prompt_lookup_max"),
        "speculative_ngram_min_bfs_breadth": Foreign(_SGLANG, "", _TREE),
        "speculative_ngram_max_bfs_breadth": Foreign(_SGLANG, "", _TREE),
        "speculative_ngram_match_type": Foreign(_SGLANG, "match", "of methods that look ids up in the text so far"),
        "speculative_ngram_branch_length": Foreign(_SGLANG, "num_speculative_tokens"),
        "speculative_ngram_capacity": Foreign(_SGLANG, "max_cached_tokens", "of methods that keep trees of suffixes"),
        "speculative_ngram_max_trie_depth": Foreign(_SGLANG, "", _TREE),
        "speculative_ngram_external_corpus_path": Foreign(
            _SGLANG, "load_cache", "of methods that keep trees of suffixes"
        ),
        "speculative_ngram_external_corpus_max_tokens": Foreign(
            _SGLANG, "max_cached_tokens", "of methods that keep trees of suffixes"
        ),
        "speculative_ngram_external_sam_budget": Foreign(_SGLANG, "", _TREE),
        "decoding_type": Foreign(_TENSORRT, "method", _NAMES),
        "max_draft_len": Foreign(_TENSORRT, "num_speculative_tokens"),
        "max_total_draft_tokens": Foreign(_TENSORRT, "num_speculative_tokens", "for trees it counts nodes"),
        "speculative_model_dir": Foreign(_TENSORRT, "model"),
        "load_format": Foreign(_TENSORRT, "", "formats are found from the files: leave it out"),
        "acceptance_rate_window_size": Foreign(_TENSORRT, "controller", _ADAPTIVE),
        "acceptance_rate_threshold": Foreign(_TENSORRT, "controller", _ADAPTIVE),
        "use_rejection_sampling": Foreign(_TENSORRT, "rejection_sample_method", _REJECTION),
        "advanced_sampling_mode": Foreign(_TENSORRT, "", "all sampling parameters hold: leave it out"),
        "enable_penalty": Foreign(_TENSORRT, "", "all sampling parameters hold: leave it out"),
        "sa_config": Foreign(
            _TENSORRT, "", "drafts of several methods at once are a method: see `specdec plugins list`"
        ),
        "enable_global_pool": Foreign(_TENSORRT, "", "methods that keep trees of suffixes use texts of other requests"),
        "global_pool_size": Foreign(_TENSORRT, "max_cached_tokens", "of methods that keep trees of suffixes"),
        "use_mtp_vanilla": Foreign(_TENSORRT, "", "an option of the method has it: see `specdec plugins show METHOD`"),
        "mtp_eagle_one_model": Foreign(_TENSORRT, "", _HERE),
        "begin_thinking_phase_token": Foreign(_TENSORRT, "", _ACCEPT),
        "end_thinking_phase_token": Foreign(_TENSORRT, "", _ACCEPT),
        "max_non_leaves_per_layer": Foreign(_TENSORRT, "", _TREE),
        "eagle3_model_arch": Foreign(_TENSORRT, "", _CHECKPOINT),
        "draft_len_schedule": Foreign(
            _TENSORRT, "num_speculative_tokens_per_batch_size", "as a list of [start, end, K], K 0 for none"
        ),
        "max_concurrency": Foreign(_TENSORRT, "disable_by_batch_size", "no drafting while more requests than this run"),
        "num_nextn_predict_layers": Foreign(_TENSORRT, "num_speculative_tokens"),
        "num_medusa_heads": Foreign(_TENSORRT, "num_speculative_tokens"),
        "num_eagle_layers": Foreign(_TENSORRT, "", _CHECKPOINT),
        "eagle_choices": Foreign(_TENSORRT, "speculative_token_tree", "as a list of paths"),
        "medusa_choices": Foreign(_TENSORRT, "speculative_token_tree", "as a list of paths"),
        "use_dynamic_tree": Foreign(_TENSORRT, "tree_top_k", "tokens a node and a level; it turns dynamic trees on"),
        "dynamic_tree_max_topK": Foreign(_TENSORRT, "tree_top_k"),
        "eagle3_one_model": Foreign(_TENSORRT, "", _HERE),
        "eagle3_layers_to_capture": Foreign(
            _TENSORRT, "", "the option of the method for which layers its head reads: see `specdec plugins show`"
        ),
        "max_matching_ngram_size": Foreign(_TENSORRT, "prompt_lookup_max"),
        "is_use_oldest": Foreign(_TENSORRT, "match", '"earliest" for true, "latest" for false'),
        "is_keep_all": Foreign(_TENSORRT, "", _HERE),
        "is_public_pool": Foreign(_TENSORRT, "", "methods that keep trees of suffixes use texts of other requests"),
        "use_relaxed_acceptance_for_thinking": Foreign(_TENSORRT, "", _ACCEPT),
        "relaxed_topk": Foreign(_TENSORRT, "", _ACCEPT),
        "relaxed_delta": Foreign(_TENSORRT, "", _ACCEPT),
        "greedy_sampling": Foreign(_TENSORRT, "", "the request's temperature does it: leave it out"),
        "allow_advanced_sampling": Foreign(_TENSORRT, "", "all sampling parameters hold: leave it out"),
        "acceptance_window": Foreign(_TENSORRT, "controller", _ADAPTIVE),
        "acceptance_length_threshold": Foreign(_TENSORRT, "controller", _ADAPTIVE),
    }
)
