"""vLLM's options that Octavo does not have: the values that ask for what Octavo does anyway, and the names that no longer
mean anything. Whoever brings a vLLM command line, YAML file or `LLM(...)` call learns from these what is missing."""

from __future__ import annotations

from collections.abc import Mapping

# Name -> values, as text, under which Octavo already does what the option asks for. `None` and `{}` are always such values,
# since that is how vLLM spells "not given". A name whose only values are true and false is a switch without a value.
NEUTRAL_VALUES: Mapping[str, tuple[str, ...]] = {
    # model
    "tokenizer_mode": ("auto", "hf"),
    "tokenizer_revision": (),
    "code_revision": (),
    "hf_config_path": (),
    "hf_overrides": (),
    "hf_token": (),
    "config_format": ("auto", "hf"),
    "load_format": ("auto",),
    "model_loader_extra_config": (),
    "ignore_patterns": (),
    "quantization_config": (),
    "allowed_local_media_path": ("",),
    "allowed_media_domains": (),
    "override_generation_config": (),
    "override_neuron_config": (),
    "logits_processors": (),
    "io_processor_plugin": (),
    "enable_prompt_embeds": ("false",),
    "enable_sleep_mode": ("false",),
    "enable_return_routed_experts": ("false",),
    "return_sampling_mask": ("false",),
    "disable_cascade_attn": ("true", "false"),
    "disable_sliding_window": ("false",),
    "rope_scaling": (),
    "rope_theta": (),
    "limit_mm_per_prompt": (),
    "mm_processor_kwargs": (),
    "mm_processor_cache_gb": ("0",),
    "interleave_mm_strings": ("false",),
    "skip_mm_profiling": ("true", "false"),
    # parallel
    "tensor_parallel_size": ("1",),
    "pipeline_parallel_size": ("1",),
    "data_parallel_size": ("1",),
    "data_parallel_size_local": ("1",),
    "data_parallel_rank": ("0",),
    "data_parallel_start_rank": ("0",),
    "data_parallel_address": (),
    "data_parallel_rpc_port": (),
    "data_parallel_backend": (),
    "data_parallel_hybrid_lb": ("false",),
    "data_parallel_external_lb": ("false",),
    "decode_context_parallel_size": ("1",),
    "prefill_context_parallel_size": ("1",),
    "enable_expert_parallel": ("false",),
    "enable_eplb": ("false",),
    "eplb_config": (),
    "num_redundant_experts": ("0",),
    "expert_placement_strategy": (),
    "all2all_backend": (),
    "distributed_executor_backend": ("uni",),
    "nnodes": ("1",),
    "node_rank": ("0",),
    "master_addr": (),
    "master_port": (),
    "enable_dbo": ("false",),
    "worker_cls": ("auto",),
    "worker_extension_cls": ("",),
    "api_server_count": ("1",),
    "headless": ("false",),
    # cache
    "cpu_offload_gb": ("0",),
    "offload_backend": ("auto",),
    "offload_group_size": ("0",),
    "offload_num_in_group": ("1",),
    "offload_prefetch_step": ("1",),
    "offload_params": (),
    "calculate_kv_scales": ("false",),
    "prefix_caching_hash_algo": ("sha256",),
    "kv_sharing_fast_prefill": ("false",),
    "kv_offloading_size": (),
    "kv_offloading_backend": (),
    "kv_transfer_config": (),
    "kv_events_config": (),
    "ec_transfer_config": (),
    "mamba_cache_dtype": ("auto",),
    "mamba_ssm_cache_dtype": ("auto",),
    "mamba_block_size": (),
    # scheduler
    "num_scheduler_steps": ("1",),
    "async_scheduling": ("false",),
    "max_num_partial_prefills": ("1",),
    "max_long_partial_prefills": ("1",),
    "num_lookahead_slots": ("0",),
    "scheduler_delay_factor": ("0",),
    "scheduler_cls": (),
    "scheduler_reserve_full_isl": ("false",),
    "disable_hybrid_kv_cache_manager": ("true", "false"),
    "disable_chunked_mm_input": ("true", "false"),
    "stream_interval": ("1",),
    # adapters, speculation, structured output, compilation
    "enable_lora": ("false",),
    "enable_lora_bias": ("false",),
    "max_loras": (),
    "max_lora_rank": (),
    "max_cpu_loras": (),
    "lora_dtype": (),
    "lora_extra_vocab_size": (),
    "lora_modules": (),
    "fully_sharded_loras": ("false",),
    "enable_prompt_adapter": ("false",),
    "prompt_adapters": (),
    "speculative_config": (),
    "speculative_model": (),
    "num_speculative_tokens": ("0",),
    "spec_method": (),
    "spec_model": (),
    "spec_tokens": ("0",),
    "structured_outputs_config": (),
    "guided_decoding_backend": ("auto",),
    "reasoning_parser_plugin": ("",),
    "compilation_config": ("0",),
    "attention_config": (),
    "attention_backend": (),
    "kernel_config": (),
    "profiler_config": (),
    "additional_config": (),
    "otlp_traces_endpoint": (),
    # server
    "chat_template_content_format": ("auto",),
    "response_role": ("assistant",),
    "tool_parser_plugin": ("",),
    "tool_server": (),
    "enable_prompt_tokens_details": ("true", "false"),
    "enable_force_include_usage": ("false",),
    "enable_request_id_headers": ("false",),
    "enable_server_load_tracking": ("true", "false"),
    "disable_log_stats": ("true", "false"),
    "disable_uvicorn_access_log": ("false",),
    "enable_log_requests": ("false",),
    "enable_log_outputs": ("false",),
    "log_config_file": (),
    "max_log_len": (),
    "uvicorn_log_level": ("info",),
    "disable_fastapi_docs": ("false",),
    "middleware": (),
    "uds": (),
    "enable_ssl_refresh": ("false",),
    "show_hidden_metrics_for_version": (),
}

# Those that take any number of values on a command line.
LISTS = frozenset(
    {"allowed_media_domains", "ignore_patterns", "logits_processors", "lora_modules", "middleware", "prompt_adapters"}
)

# Name -> whether a value follows it on a command line. Accepted from anywhere, with one warning.
RETIRED: Mapping[str, bool] = {
    "max_paddings": True,
    "max_context_len_to_capture": True,
    "max_seq_len_to_capture": True,
    "max_parallel_loading_workers": True,
    "use_v2_block_manager": False,
    "engine_use_ray": False,
    "worker_use_ray": False,
    "ray_workers_use_nsight": False,
    "disable_async_output_proc": False,
    "disable_custom_all_reduce": False,
    "disable_frontend_multiprocessing": False,
    "disable_log_requests": False,
    "use_tqdm_on_load": False,
}

# Short and second spellings of vLLM's options.
SHORT_FLAGS: Mapping[str, str] = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dpl": "data_parallel_size_local",
    "-dpr": "data_parallel_rank",
    "-dcp": "decode_context_parallel_size",
    "-ep": "enable_expert_parallel",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
    "-asc": "api_server_count",
}


def is_switch(name: str) -> bool:
    """Whether the option of vLLM stands on a command line without a value (`--no-name` is its opposite)."""
    if name in RETIRED:
        return not RETIRED[name]
    return bool(NEUTRAL_VALUES[name]) and set(NEUTRAL_VALUES[name]) <= {"true", "false"}


def is_neutral(name: str, value: object) -> bool:
    """Whether the value asks for what Octavo does anyway."""
    text = str(value).strip().lower()
    if text in ("none", "null", "{}", "[]", "()"):
        return True
    return text in NEUTRAL_VALUES[name] or (text.endswith(".0") and text[:-2] in NEUTRAL_VALUES[name])
