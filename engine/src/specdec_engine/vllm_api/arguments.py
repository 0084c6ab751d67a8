"""What becomes of every argument and method of vLLM 0.32's class `LLM` here: data; the checks are in `vllm_calls`.

docs/vllm-scripts.md is written from these tables by `specdec_engine.vllm_api.docs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from specdec_core.config.keys import Refused


@dataclass(frozen=True)
class Honoured:
    """An argument or a method that means here what it means in vLLM, or what the text says."""

    meaning: str


@dataclass(frozen=True)
class NoEffect:
    """An argument whose values all come to the same here, so that each of them is accepted."""

    reason: str


@dataclass(frozen=True)
class Missing:
    """A method that is not here, and what to use instead."""

    reason: str


Argument = Honoured | NoEffect | Refused
Method = Honoured | Missing


def _no_effect(reason: str, names: str) -> dict[str, Argument]:
    return {name: NoEffect(reason) for name in names.split()}


def _refused(reason: str, step: str = "leave it out", **harmless: Any) -> dict[str, Argument]:
    """Return one entry for each name, with the value or the tuple of values that is already the default here."""
    return {
        name: Refused(reason, values if isinstance(values, tuple) else (values,), step)
        for name, values in harmless.items()
    }


_HONOURED: Final[dict[str, Argument]] = {
    "model": Honoured("a folder, a .gguf file, or a hub id"),
    "tokenizer": Honoured("a folder or a hub id; here also a loaded tokenizer"),
    "tokenizer_mode": Honoured("`auto` and `hf`: the fast tokenizer where there is one; `slow`: the other; no others"),
    "tokenizer_revision": Honoured(
        "branch, tag or commit of the tokenizer's hub id; left out: `revision` for the model's own"
    ),
    "skip_tokenizer_init": Honoured("no tokenizer is loaded: prompts are ids, and outputs have no text"),
    "chat_template": Honoured("the template of `chat`, as text or as a file; left out: the tokenizer's own"),
    "trust_remote_code": Honoured(
        "code that comes with the model or its tokenizer may run; a draft model has its own key"
    ),
    "revision": Honoured("branch, tag or commit of a hub id"),
    "dtype": Honoured("`auto`: the checkpoint's own"),
    "seed": Honoured("of unseeded requests, together with their arrival number; `None` is 0"),
    "max_model_len": Honoured("the most ids of prompt and output together; left out: the model's own limit"),
    "max_num_seqs": Honoured("the most requests that run at one time; left out: 64"),
    "max_num_batched_tokens": Honoured(
        "`prefill_chunk_size`: the most prompt ids that run in one step; rows of running requests come on top"
    ),
    "kv_cache_memory_bytes": Honoured("bytes of the KV arena, from which `kv_cache_tokens` follows"),
    "gpu_memory_utilization": Honoured(
        "on a GPU, a bound on the memory in use: the KV arena takes a share of what is free after loading, but never "
        "more than this leaves. On a CPU it has no effect"
    ),
    "enable_prefix_caching": Honoured("on unless it is False; see [engine.md](engine.md#prefix-reuse)"),
    "enforce_eager": Honoured(
        "on a GPU, every kernel is launched by itself; left out: forwards of few rows are captured as graphs. No "
        "effect on a CPU"
    ),
    "disable_log_stats": Honoured("no lines in the log while it works (off here; in vLLM's `LLM` it is on)"),
    "logprobs_mode": Honoured("what `logprobs` gives"),
    "speculative_config": Honoured("the same keys, see [configuration.md](configuration.md)"),
    "spec_method": Honoured("the key `method` of `speculative_config`"),
    "spec_model": Honoured("the key `model` of `speculative_config`"),
    "spec_tokens": Honoured("the key `num_speculative_tokens` of `speculative_config`"),
}

_EAGER: Final = _no_effect(
    "nothing is compiled, kernels are chosen by device, and what is captured as a graph follows from `enforce_eager`",
    "compilation_config cudagraph_capture_sizes max_cudagraph_capture_size optimization_level "
    "performance_mode kernel_config ir_op_priority enable_flashinfer_autotune jit_monitor_mode jit_monitor_verbose "
    "disable_cascade_attn gdn_prefill_backend kda_prefill_backend kda_decode_backend moe_backend linear_backend "
    "sparse_indexer_topk_backend use_tqdm_on_load max_parallel_loading_workers safetensors_load_strategy "
    "safetensors_prefetch_num_threads safetensors_prefetch_block_size pt_load_map_location",
)
_ONE_DEVICE: Final = (
    _no_effect(
        "there is one process and one device",
        "disable_custom_all_reduce master_addr master_port distributed_timeout_seconds cpu_distributed_timeout_seconds "
        "distributed_executor_backend dcp_comm_backend dcp_q_replicate dcp_kv_cache_interleave_size "
        "cp_kv_cache_interleave_size data_parallel_backend all2all_backend elastic_ep_max_dp_size "
        "dp_sync_interval disable_nccl_for_dp_synchronization eplb_config expert_placement_strategy "
        "enable_shm_tensor_arena ray_workers_use_nsight dbo_decode_token_threshold dbo_prefill_token_threshold "
        "data_parallel_address data_parallel_rpc_port renderer_num_workers shutdown_timeout fail_on_environ_validation",
    )
    | _refused(
        "there is one process and one device",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
        data_parallel_size=1,
        data_parallel_size_local=(None, 1),
        data_parallel_rank=(None, 0),
        data_parallel_start_rank=(None, 0),
        data_parallel_hybrid_lb=False,
        data_parallel_external_lb=False,
        data_parallel_multi_port_external_lb=False,
        nnodes=1,
        node_rank=0,
        numa_bind=False,
        numa_bind_nodes=None,
        numa_bind_cpus=None,
        enable_hc_sp=False,
        enable_expert_parallel=False,
        enable_batch_sharded_sampling=(None, False),
        enable_ep_weight_filter=False,
        enable_elastic_ep=False,
        enable_eplb=False,
        enable_dbo=False,
        ubatch_size=0,
        _api_process_count=1,
        _api_process_rank=0,
        enable_fault_tolerance=False,
    )
    | _refused("there is one process and one device", "give its name as device", device_ids=None)
)
_TEXT_ONLY: Final = _no_effect(
    "prompts are text or ids, and requests with other parts are refused",
    "allowed_local_media_path allowed_media_domains limit_mm_per_prompt language_model_only mm_processor_kwargs "
    "media_io_kwargs interleave_mm_strings mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm "
    "mm_shm_cache_max_object_size_mb mm_encoder_tp_mode mm_encoder_attn_backend mm_encoder_attn_dtype "
    "mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin skip_mm_profiling "
    "video_pruning_rate video_pruning_method mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb "
    "mm_device_do_normalize disable_chunked_mm_input enable_mm_processor_stats ec_manager_config",
) | _refused(
    "prompts are text or ids",
    enable_prompt_embeds=False,
    enable_mm_embeds=False,
    mm_encoder_only=False,
    io_processor_plugin=(None, ""),
    ec_transfer_config=None,
)
_TASK: Final = (
    _refused("texts are generated here, and nothing is pooled", runner=("auto", "generate"), pooler_config=None)
    | _refused("texts are generated here, and nothing is pooled", convert=("auto", "none"))
    | _refused("one id after the other is generated here", diffusion_config=None)
)
_CACHE: Final = (
    _refused("pages of ids are what a prefix is matched by", prefix_match_unit=None)
    | _no_effect(
        "the prefix cache holds what the KV arena has room for, under digests of its own",
        "prefix_caching_hash_algo prefix_cache_retention_interval",
    )
    | _refused("the KV cache has the dtype of the model", kv_cache_dtype="auto", kv_cache_dtype_skip_layers=[])
    | _refused("pages have a fixed size", "leave it out; kv_cache_tokens is the number of positions", block_size=None)
    | _refused("the KV arena is sized otherwise", "give kv_cache_tokens", num_gpu_blocks_override=None)
    | _refused("windows are those of the model's configuration", disable_sliding_window=False)
    | _no_effect("there is one KV arena for layers of all types", "disable_hybrid_kv_cache_manager swa_bounded_replay")
    | _refused(
        "weights and cache stay on one device",
        cpu_offload_gb=(0, 0.0),
        offload_backend="auto",
        offload_group_size=0,
        kv_offloading_size=None,
        kv_transfer_config=None,
        kv_events_config=None,
        kv_sharing_fast_prefill=False,
    )
    | _no_effect(
        "weights and cache stay on one device",
        "cpu_offload_params offload_num_in_group offload_prefetch_step offload_params kv_offloading_backend",
    )
    | _no_effect(
        "recurrent states are kept in float32, for max_num_seqs requests, and no setting changes how",
        "mamba_config mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode mamba_backend "
        "enable_mamba_shared_prefix_checkpoint replayssm_buffer_len use_replayssm mamba_ssu_algorithm "
        "enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds",
    )
)
_LOADING: Final = (
    _refused(
        "a checkpoint is loaded as its config.json describes it, quantized or not",
        "leave it out; give a checkpoint that is quantized",
        quantization=None,
        quantization_config=None,
        allow_deprecated_quantization=False,
    )
    | _refused("transformers finds the format", load_format=("auto", "hf"), config_format=("auto", "hf"))
    | _refused("transformers runs the model", model_impl=("auto", "transformers"), model_class_overrides={})
    | _refused("transformers runs the model", worker_cls="auto", worker_extension_cls="", scheduler_cls=None)
    | _refused("checkpoints are read as they are", hf_overrides=(None, {}), hf_config_path=None, model_weights="")
    | _refused("checkpoints are read as they are", "leave it out", ignore_patterns=([], ["original/**/*"]))
    | _refused("checkpoints are read as they are", model_loader_extra_config={}, weight_transfer_config=None)
    | _refused("the cache of the hub library is used", "set the environment variable HF_HOME", download_dir=None)
    | _refused("the token of the hub library is used", "set the environment variable HF_TOKEN", hf_token=(None, True))
    | _refused("code of a checkpoint has the checkpoint's own revision", code_revision=None)
    | _refused(
        "parameters that are left out have the defaults of SamplingParams, not those of the checkpoint",
        "pass SamplingParams",
        generation_config="vllm",
        override_generation_config=(None, {}),
    )
)
_LORA: Final = _refused(
    "one adapter serves all requests here, and none a single one",
    "name it as lora=, and leave this out",
    enable_lora=False,
    default_mm_loras=None,
) | _no_effect(
    "it is read with enable_lora only",
    "max_loras max_lora_rank fully_sharded_loras max_cpu_loras lora_dtype lora_target_modules "
    "enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras "
    "max_lora_cls_labels",
)
_STEPS: Final = (
    _refused("prompts always come in chunks", enable_chunked_prefill=(None, True))
    | _refused("requests run in order of arrival", scheduling_policy="fcfs", prefill_schedule_interval=1)
    | _refused("no step overlaps with another", async_scheduling=(None, False))
    | _refused("`max_num_batched_tokens` and `max_num_seqs` are the limits", max_num_scheduled_tokens=None)
    | _refused("`max_num_batched_tokens` and `max_num_seqs` are the limits", max_num_active_seqs=None)
    | _refused("nobody is refused because many wait", max_num_queued_reqs=None, max_num_queued_tokens=None)
    | _refused("long prompts are cut like all others", long_prefill_token_threshold=0)
    | _refused("long prompts are cut like all others", long_prefill_token_threshold_adaptive=False)
    | _refused("a stream shows every step", stream_interval=1)
    | _no_effect("a request joins when its known ids fit", "scheduler_reserve_full_isl watermark")
    | _no_effect("nothing limits `logprobs`", "max_logprobs")
    | _refused("noise has the definition of `coupled`", use_fp64_gumbel=False)
    | _refused("it is not built here", enable_return_routed_experts=False, return_sampling_mask=False)
    | _refused("it is not built here", enable_trace_replay=False, watermark_config=None, engram_config=None)
    | _refused("it is not built here", tokens_only=False, additional_config={}, reasoning_config=None)
    | _refused("it is not built here", reasoning_parser="", reasoning_parser_plugin=None, aux_output_config=None)
    | _refused(
        "forms are read by llguidance",
        "leave it out; SamplingParams(structured_outputs=...) has the options of a form",
        structured_outputs_config=(None, {}, {"backend": "auto"}, {"backend": "guidance"}),
    )
    | _refused("they belong to a request", "pass SamplingParams(logits_processors=...)", logits_processors=(None, []))
    | _refused("kernels are chosen by device", "set SPECDEC_KERNELS", attention_backend=None, attention_config=None)
    | _no_effect("nothing sleeps", "sleep_mode_offload_cudagraph sleep_preserve_parameter_names")
    | _no_effect("`pause` needs nothing prepared", "enable_sleep_mode enable_cumem_allocator enable_nccl_comm_suspend")
)
_WATCHING: Final = _no_effect(
    "it names the model for clients of a server or for the log, and changes nothing else",
    "served_model_name aggregate_engine_logging show_hidden_metrics_for_version logging_config log_level "
    "log_config_file custom_histogram_buckets kv_cache_metrics_sample fault_tolerance_config",
) | _refused(
    "the engine keeps no such record",
    "leave it out; get_metrics(), get_state() and specdec_engine.reporting.prometheus have the figures",
    otlp_traces_endpoint=None,
    collect_detailed_traces=None,
    per_request_spec_decode_metrics="none",
    kv_cache_metrics=False,
    cudagraph_metrics=False,
    enable_layerwise_nvtx_tracing=False,
    enable_mfu_metrics=False,
    enable_logging_iteration_details=False,
    profiler_config=None,
)

ARGUMENTS: Final[MappingProxyType[str, Argument]] = MappingProxyType(
    {
        **_HONOURED,
        **_LOADING,
        **_CACHE,
        **_STEPS,
        **_EAGER,
        **_ONE_DEVICE,
        **_TASK,
        **_TEXT_ONLY,
        **_LORA,
        **_WATCHING,
    }
)

# Arguments of `generate` and `chat` besides those that are parameters here.
CALL_ARGUMENTS: Final[MappingProxyType[str, Refused]] = MappingProxyType(
    {
        "lora_request": Refused(
            "one adapter serves all requests here, and none a single one",
            (None,),
            "name it as lora= of LLM, or use vLLM",
        ),
        "priority": Refused("requests run in order of arrival", (None,)),
        "tokenization_kwargs": Refused("texts become ids in one way", (None, {}), "tokenize yourself and pass ids"),
        "mm_processor_kwargs": Refused("prompts are text or ids", (None, {})),
    }
)

_POOLED: Final = Missing("texts are generated here, and nothing is pooled; use a model and a library for embeddings")
_WEIGHTS: Final = Missing("weights do not change while the engine lives; make a new one")
METHODS: Final[MappingProxyType[str, Method]] = MappingProxyType(
    {
        "generate": Honoured("the same; `use_tqdm` is on or off"),
        "chat": Honoured("the same; conversations are text"),
        "get_tokenizer": Honoured("the tokenizer of transformers, None without one"),
        "get_default_sampling_params": Honoured("`SamplingParams()`"),
        "get_metrics": Honoured("the figures of speculation as one `SpecMetrics`, not vLLM's list"),
        "get_world_size": Honoured("1"),
        "apply_model": Honoured(
            "a list with what the function returns for the transformers model; the prefix cache is empty afterwards"
        ),
        "reset_prefix_cache": Honoured(
            "True: nothing of earlier requests is taken over from then on. Requests that run keep their pages and "
            "share no more of them; with `reset_running_requests` they run their ids again"
        ),
        "reset_mm_cache": Honoured("nothing: there is none"),
        "from_engine_args": Missing("pass the arguments to LLM"),
        "enqueue": Missing("use `start`, whose run is stepped by the caller, or `stream`"),
        "enqueue_chat": Missing("use `start(llm.chat_prompts(messages))`"),
        "wait_for_completion": Missing("use `start`, whose run is stepped by the caller, or `stream`"),
        "beam_search": Missing("beams are not decoded here; `SamplingParams(n=...)` draws several samples"),
        "encode": _POOLED,
        "embed": _POOLED,
        "classify": _POOLED,
        "score": _POOLED,
        "collective_rpc": Missing("there is one process: use `apply_model`, or the attribute `model`"),
        "start_profile": Missing("use `torch.profiler.profile` around the call"),
        "stop_profile": Missing("use `torch.profiler.profile` around the call"),
        "sleep": Missing("use `pause`, which drops the KV arena; weights stay where they are"),
        "wake_up": Missing("use `resume` after `pause`"),
        "release_kv_cache_memory": Missing("use `pause`"),
        "init_weight_transfer_engine": _WEIGHTS,
        "shutdown_weight_transfer_engine": _WEIGHTS,
        "start_weight_update": _WEIGHTS,
        "start_draft_weight_update": _WEIGHTS,
        "update_weights": _WEIGHTS,
        "finish_weight_update": _WEIGHTS,
        "update_weight_version": _WEIGHTS,
        "get_weight_version": _WEIGHTS,
    }
)
