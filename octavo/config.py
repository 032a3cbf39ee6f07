"""EngineConfig: the one description of every option. Command-line flags, YAML keys, `LLM(...)` keywords and the option
table of the docs are all generated from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def option(default: Any, help: str, *, group: str = "engine", flags: tuple[str, ...] = (), choices: tuple[str, ...] = ()) -> Any:
    """A field with what its flag needs. `flags` are further spellings beside `--field-name`."""
    return field(default=default, metadata={"help": help, "group": group, "flags": flags, "choices": choices})


@dataclass(frozen=True)
class EngineConfig:
    """All options, validated on construction (ConfigError names the flag)."""

    # model
    model: str | None = option(None, "Directory, .gguf file or hub id", group="model")
    tokenizer: str | None = option(None, "Take the tokenizer from here instead", group="model")
    skip_tokenizer_init: bool = option(False, "No tokenizer: prompts and outputs are token ids", group="model")
    revision: str | None = option(None, "Branch, tag or commit on the hub", group="model")
    hub: str = option("huggingface", "Where hub ids are looked up", group="model", choices=("huggingface", "modelscope"))
    download_dir: str | None = option(None, "Cache directory for downloads", group="model")
    dtype: str = option("auto", "Weights and KV cache", group="model", choices=("auto", "bfloat16", "float16", "float32"))
    max_model_len: int | None = option(None, "Longest prompt + output, in tokens", group="model")
    generation_config: str = option("auto", "Sampling defaults: auto (the model's), vllm (neutral) or a directory", group="model")
    chat_template: str | None = option(None, "Template file or text, instead of the model's", group="model")
    trust_remote_code: bool = option(False, "Accepted; nothing is run", group="model")
    seed: int | None = option(None, "Makes requests without a seed reproducible", group="model")
    # engine
    device: str = option("auto", "Where to run", choices=("auto", "cpu"))
    backend: str = option("auto", "CPU kernels: native (cpu) or the plain reference (numpy)", choices=("auto", "cpu", "numpy"))
    cpu_threads: int | None = option(None, "Threads of the native kernels (default: what affinity, cgroup and cores allow)")
    cpu_isa: str = option("auto", "Force a lower instruction set", choices=("auto", "avx512_bf16", "avx512", "avx2", "generic"))
    max_num_seqs: int = option(256, "Sequences in one step")
    max_num_batched_tokens: int | None = option(None, "Tokens in one step (default 2048 on a CPU)")
    block_size: int = option(16, "Tokens in a KV block, a multiple of 16")
    memory_utilization: float = option(
        0.9, "Share of the machine's (cgroup's) available memory that may be used", flags=("--gpu-memory-utilization",)
    )
    kv_cache_memory_bytes: int | None = option(None, "KV cache size, instead of what memory_utilization leaves")
    num_gpu_blocks_override: int | None = option(None, "KV blocks, instead of what memory allows")
    enable_chunked_prefill: bool = option(True, "Split long prompts over steps")
    enforce_eager: bool = option(False, "Accepted; there is no graph to capture")
    scheduling_policy: str = option("fcfs", "Order of waiting requests", choices=("fcfs",))
    preemption_mode: str = option("recompute", "What happens to a preempted request", choices=("recompute",))
    max_logprobs: int = option(20, "Largest logprobs a request may ask for (-1: the vocabulary)")
    # server
    host: str = option("127.0.0.1", "Address to listen on", group="server")
    port: int = option(8000, "Port to listen on", group="server")
    served_model_name: tuple[str, ...] = option((), "Names under which the model is served", group="server")
    api_key: tuple[str, ...] = option((), "Keys that clients must send as Bearer tokens", group="server")
    metrics_prefix: str = option("vllm:", "Prefix of the metric names", group="server")
    shutdown_timeout: float = option(30.0, "Seconds that running requests get to end after SIGTERM", group="server")
    disable_progress: bool = option(False, "No progress bar", group="server")
