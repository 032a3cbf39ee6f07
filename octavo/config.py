"""EngineConfig: the one description of every option. Command-line flags, YAML keys, `LLM(...)` keywords and the option
table of the docs are all generated from it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.options.description import Option, describe, option
from octavo.options.parsers import REASONING_PARSERS, TOOL_PARSERS
from octavo.options.pooler import read_pooler_config

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#]+|null")
_METRIC_PREFIX = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?")


@dataclass(frozen=True)
class EngineConfig:
    """All options, validated on construction (ConfigError names the flag). None means: found out at the start."""

    # model
    model: str | None = option(None, "Directory, .gguf file or hub id", group="model")
    tokenizer: str | None = option(None, "Take the tokenizer from here instead", group="model")
    skip_tokenizer_init: bool = option(False, "No tokenizer: prompts and outputs are token ids", group="model")
    revision: str | None = option(None, "Branch, tag or commit on the hub", group="model")
    hub: str = option("huggingface", "Where hub ids are looked up", group="model", choices=("huggingface", "modelscope"))
    download_dir: str | None = option(None, "Cache directory for downloads", group="model")
    dtype: str = option(
        "auto",
        "Weights, and the KV cache unless --kv-cache-dtype is given",
        group="model",
        choices=("auto", "bfloat16", "float16", "float32"),
        aliases={"half": "float16", "float": "float32"},
    )
    quantization: str | None = option(
        None,
        "Round 16-bit weights while loading (int8, int4, fp8), or the method that the checkpoint was quantized with",
        group="model",
        flags=("-q",),
        choices=("int8", "int4", "fp8", "awq", "gptq", "compressed-tensors", "fbgemm_fp8"),
        aliases={
            **dict.fromkeys(("none", "None", "null")),
            **{"awq_marlin": "awq", "gptq_marlin": "gptq"},
        },
    )
    quantization_group_size: int | None = option(
        None,
        "Inputs that share a scale with --quantization int4 (default: 32)",
        group="model",
        minimum=32,
        maximum=128,
        multiple_of=32,
    )
    quantization_activations: str = option(
        "auto",
        "What activations are rounded to beside integers (auto: int8 for --quantization int4, else int16)",
        group="model",
        choices=("auto", "int8", "int16"),
    )
    max_model_len: int | None = option(
        None,
        "Longest prompt + output, in tokens (default: the model's own; auto: what fits into memory)",
        group="model",
        minimum=1,
        words={"auto": -1},
    )
    runner: str = option(
        "auto",
        "What the model is for: text, or embeddings and scores (auto: what its files say)",
        group="model",
        choices=("auto", "generate", "pooling"),
    )
    convert: str = option(
        "auto",
        "Make a pooling model of a generative one: of its last hidden states, or with a classifier's head",
        group="model",
        choices=("auto", "none", "embed", "classify"),
    )
    task: str = option(
        "auto",
        "vLLM's older name for --runner and --convert together",
        group="model",
        choices=("auto", "generate", "embed", "classify", "score"),
        aliases={"embedding": "embed"},
    )
    pooler_config: str | None = option(
        None,
        "JSON: pooling_type (CLS, LAST, MEAN), task, use_activation, dimensions, is_matryoshka, ...",
        group="model",
        flags=("--override-pooler-config",),
        holds_json=True,
    )
    generation_config: str = option(
        "auto", "Sampling defaults: auto (the model's), vllm (neutral) or a directory", group="model"
    )
    chat_template: str | None = option(None, "Template file or text, instead of the model's", group="model")
    default_chat_template_kwargs: str | None = option(
        None,
        "Variables of the chat template where a request gives no others, as JSON: '{\"enable_thinking\": false}'",
        group="model",
        holds_json=True,
    )
    fold_system_message: bool = option(
        False, "Put what the system says before the first user message, for a template that refuses the role", group="model"
    )
    model_impl: str = option(
        "auto",
        "Whose code computes the model: Octavo's, Transformers' (extra transformers), or auto: Octavo's where it knows it",
        group="model",
        choices=("auto", "octavo", "transformers"),
        aliases={"vllm": "octavo"},
    )
    trust_remote_code: bool = option(
        False, "Let Transformers run the model repository's code (--model-impl); Octavo's own runs none", group="model"
    )
    seed: int | None = option(
        None, "Makes requests without a seed reproducible", group="model", minimum=-(2**63), maximum=2**63 - 1
    )
    # engine
    device: str = option("auto", "Where to run", choices=("auto", "cpu"))
    backend: str = option(
        "auto", "CPU kernels: native (cpu) or the plain reference (numpy)", choices=("auto", "cpu", "numpy")
    )
    cpu_threads: int | None = option(
        None, "Threads of the native kernels (default: what affinity, cgroup and cores allow)", minimum=1, maximum=1024
    )
    cpu_pin_threads: bool = option(False, "Keep each thread of the native kernels but the first on a core of its own")
    cpu_isa: str = option(
        "auto", "Force a lower instruction set", choices=("auto", "amx", "avx512_bf16", "avx512", "avx2", "generic")
    )
    max_num_seqs: int = option(256, "Sequences in one step", minimum=1)
    max_num_batched_tokens: int | None = option(None, "Tokens in one step (default 2048 on a CPU)", minimum=1)
    block_size: int = option(16, "Tokens in a KV block", minimum=16, multiple_of=16)
    kv_cache_dtype: str = option(
        "auto",
        "KV cache (auto: as the weights); int8 has a scale for each token and head",
        choices=("auto", "bfloat16", "float16", "float32", "fp8_e4m3", "int8"),
        aliases={"fp8": "fp8_e4m3"},
    )
    memory_utilization: float = option(
        0.9,
        "Share of the machine's (cgroup's) available memory that may be used",
        flags=("--gpu-memory-utilization",),
        above=0.0,
        maximum=1.0,
    )
    kv_cache_memory_bytes: int | None = option(None, "KV cache size, instead of what memory_utilization leaves", minimum=1)
    num_gpu_blocks_override: int | None = option(None, "KV blocks, instead of what memory allows", minimum=1)
    enable_chunked_prefill: bool = option(True, "Split long prompts over steps")
    enable_prefix_caching: bool = option(True, "Keep what was computed for prompts that begin alike")
    enforce_eager: bool = option(False, "Accepted; there is no graph to capture")
    scheduling_policy: str = option(
        "fcfs",
        "Order of requests: by arrival (fcfs), or by their `priority`, lower first, and then by arrival",
        choices=("fcfs", "priority"),
    )
    long_prefill_token_threshold: int = option(
        0, "Tokens of one prompt in a step, at most (0: as many as fit into it)", minimum=0
    )
    max_itl_ms: float | None = option(
        None,
        "Milliseconds between two tokens of an answer that prompts of others may cause; sizes their chunks",
        minimum=1.0,
    )
    logprobs_mode: str = option(
        "raw_logprobs",
        "What logprobs are: of the model, or of what is drawn from; or the logits themselves",
        choices=("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"),
    )
    preemption_mode: str = option(
        "recompute",
        "A request that gives way computes its cache again, moves it to host memory, or does whichever is quicker",
        choices=("recompute", "swap", "auto"),
    )
    swap_space: float | None = option(
        None, "GiB of host memory for swap and auto (default 4, less where memory is short)", minimum=0.0, maximum=65536.0
    )
    kv_offload_dir: str | None = option(
        None, "Directory where swap and auto keep KV blocks in files too, which later starts find again"
    )
    kv_offload_space: float = option(16.0, "GiB of files under kv_offload_dir, at most", above=0.0, maximum=1048576.0)
    max_logprobs: int = option(20, "Largest logprobs a request may ask for (-1: the vocabulary)", minimum=-1)
    reasoning_parser: str | None = option(
        None,
        "Tell reasoning from content in answers, by this format (auto: the chat template's)",
        choices=REASONING_PARSERS,
        aliases={"": None},
    )
    disable_progress: bool = option(False, "No progress bar")
    # server
    host: str = option("127.0.0.1", "Address to listen on", group="server")
    port: int = option(8000, "Port to listen on (0: any free one)", group="server", minimum=0, maximum=65535)
    served_model_name: tuple[str, ...] = option((), "Names under which the model is served", group="server")
    api_key: tuple[str, ...] = option((), "Keys that clients must send as Bearer tokens", group="server")
    api_key_file: str | None = option(None, "File with further keys, one a line", group="server")
    guard_metrics: bool = option(False, "Ask for a key on /metrics too", group="server")
    trust_request_chat_template: bool = option(False, "Let requests bring a chat_template", group="server")
    enable_tokenizer_info_endpoint: bool = option(
        False, "Show special tokens and the template on /tokenizer_info", group="server"
    )
    root_path: str = option("", "Path under which a proxy shows the server, as /llm", group="server")
    allowed_origins: tuple[str, ...] = option(("*",), "Origins whose pages may ask (CORS); [] for none", group="server")
    allowed_methods: tuple[str, ...] = option(("*",), "Methods that they may use", group="server")
    allowed_headers: tuple[str, ...] = option(("*",), "Headers that they may send", group="server")
    allow_credentials: bool = option(False, "Let them send cookies", group="server")
    ssl_certfile: str | None = option(None, "Certificate chain (PEM): HTTPS in place of HTTP", group="server")
    ssl_keyfile: str | None = option(None, "Its private key, if in another file", group="server")
    ssl_ca_certs: str | None = option(None, "Authorities whose client certificates are accepted", group="server")
    ssl_cert_reqs: int = option(
        0, "Client certificates: 0 none, 1 if there is one, 2 required", group="server", minimum=0, maximum=2
    )
    max_num_queued_reqs: int | None = option(
        None, "Sequences that may run and wait; 503 for those that come then", group="server", minimum=1
    )
    max_num_queued_tokens: int | None = option(
        None, "Tokens of prompts that may be to be computed; 503 for those that come then", group="server", minimum=1
    )
    enable_auto_tool_choice: bool = option(False, "Look for tool calls in answers to requests with tools", group="server")
    tool_call_parser: str = option(
        "auto",
        "Format of the model's tool calls (auto: the chat template's)",
        group="server",
        choices=TOOL_PARSERS,
    )
    tool_call_regex: str | None = option(
        None, "With --tool-call-parser regex: a pattern with the groups name and arguments", group="server"
    )
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Do not show the model a request's tools when it may not call them", group="server"
    )
    engine_stall_timeout: float = option(
        300.0,
        "Seconds without a step, with requests there, until /health is 503 and the state is logged (0: never)",
        group="server",
        minimum=0.0,
    )
    metrics_prefix: str = option("vllm:", "Prefix of the metric names", group="server")
    return_tokens_as_token_ids: bool = option(
        False, "Logprobs show tokens as token_id:N, unless a request wants their texts", group="server"
    )
    shutdown_timeout: float = option(
        30.0, "Seconds that running requests get to end after SIGTERM", group="server", minimum=0.0
    )

    def __post_init__(self) -> None:
        for name, described in OPTIONS.items():
            value = described.normalise(getattr(self, name))
            described.check(value)
            object.__setattr__(self, name, value)
        _check_texts(self)
        _check_together(self)


OPTIONS: Mapping[str, Option] = describe(EngineConfig)


def _check_texts(config: EngineConfig) -> None:
    if config.pooler_config is not None:
        read_pooler_config(config.pooler_config)
    default_template_variables(config)
    for name in ("model", "tokenizer", "kv_offload_dir", "host"):
        if getattr(config, name) == "":
            raise OPTIONS[name].error("must not be empty")
    for name in ("served_model_name", "api_key", "allowed_origins", "allowed_methods", "allowed_headers"):
        if "" in getattr(config, name):
            raise OPTIONS[name].error("must not hold an empty text")
    for origin in config.allowed_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise OPTIONS["allowed_origins"].error(f"takes * or origins as https://example.org, got {origin}")
    if config.root_path and not re.fullmatch(r"(/[^/?#]+)+", config.root_path):
        raise OPTIONS["root_path"].error(f"must begin with / and not end with one, as /llm, got {config.root_path}")
    if not _METRIC_PREFIX.fullmatch(config.metrics_prefix):
        raise OPTIONS["metrics_prefix"].error(
            f"must be letters, digits, _ and : and not begin with a digit, got {config.metrics_prefix!r}"
        )
    if config.tool_call_regex is not None:
        _check_tool_call_regex(config.tool_call_regex)
    for name in ("shutdown_timeout", "engine_stall_timeout", "max_itl_ms"):
        value = getattr(config, name)
        if value is not None and not math.isfinite(value):
            raise OPTIONS[name].error(f"must be a finite number, got {value}")


def default_template_variables(config: EngineConfig) -> dict[str, Any]:
    """The variables of `default_chat_template_kwargs`. ConfigError for what is no JSON object."""
    given = config.default_chat_template_kwargs
    if given is None:
        return {}
    try:
        variables = json.loads(given)
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict):
        raise OPTIONS["default_chat_template_kwargs"].error(f"takes a JSON object, got {given:.80}")
    return variables


def _check_tool_call_regex(pattern: str) -> None:
    try:
        groups = set(re.compile(pattern).groupindex)
    except (re.error, RecursionError, OverflowError) as error:
        raise OPTIONS["tool_call_regex"].error(f"is no regular expression: {error}") from None
    if not groups >= {"name", "arguments"}:
        raise OPTIONS["tool_call_regex"].error("must have the groups (?P<name>...) and (?P<arguments>...)")


def _check_together(config: EngineConfig) -> None:
    """Refuse options of which one would silently undo the other."""
    _check_runner(config)
    tokens = config.max_num_batched_tokens
    if tokens is not None and tokens < config.max_num_seqs != OPTIONS["max_num_seqs"].default:
        raise OPTIONS["max_num_batched_tokens"].error(
            f"({tokens}) must not be smaller than --max-num-seqs ({config.max_num_seqs})"
        )
    if tokens is not None and not config.enable_chunked_prefill and tokens < (config.max_model_len or 0):
        raise OPTIONS["max_num_batched_tokens"].error(
            f"({tokens}) must not be smaller than --max-model-len ({config.max_model_len}) with --no-enable-chunked-prefill"
        )
    for name in ("long_prefill_token_threshold", "max_itl_ms"):
        if getattr(config, name) and not config.enable_chunked_prefill:
            raise OPTIONS[name].error("cuts prompts into chunks, which --no-enable-chunked-prefill forbids; leave one out")
    if config.kv_cache_memory_bytes is not None and config.num_gpu_blocks_override is not None:
        raise OPTIONS["kv_cache_memory_bytes"].error(
            "and --num-gpu-blocks-override both set the size of the KV cache; give one"
        )
    if config.preemption_mode != "recompute":
        _check_swap(config)
    elif config.kv_offload_dir is not None:
        raise OPTIONS["kv_offload_dir"].error("has no use with --preemption-mode recompute; add --preemption-mode auto")
    if config.quantization_group_size is not None and config.quantization != "int4":
        raise OPTIONS["quantization_group_size"].error("has no meaning without --quantization int4")
    if config.quantization_activations != "auto" and config.quantization == "fp8":
        raise OPTIONS["quantization_activations"].error("has no meaning with --quantization fp8; it is for int8 and int4")
    if config.skip_tokenizer_init and (config.tokenizer or config.chat_template):
        raise OPTIONS["skip_tokenizer_init"].error("leaves no use for --tokenizer and --chat-template; leave them out")
    for name in ("ssl_keyfile", "ssl_ca_certs"):
        if getattr(config, name) is not None and config.ssl_certfile is None:
            raise OPTIONS[name].error("has no meaning without --ssl-certfile")
    if config.ssl_cert_reqs and config.ssl_ca_certs is None:
        raise OPTIONS["ssl_cert_reqs"].error("above 0 needs --ssl-ca-certs, against which certificates are checked")
    if (config.tool_call_parser == "regex") != (config.tool_call_regex is not None):
        raise OPTIONS["tool_call_regex"].error("and --tool-call-parser regex need each other; give both or neither")
    if config.skip_tokenizer_init and (config.enable_auto_tool_choice or config.reasoning_parser):
        raise OPTIONS["skip_tokenizer_init"].error(
            "leaves no text for --enable-auto-tool-choice and --reasoning-parser; leave them out"
        )
    if config.backend == "numpy" and config.cpu_pin_threads:
        raise OPTIONS["cpu_pin_threads"].error("pins the native kernels' threads; it has no meaning with --backend numpy")
    if config.backend == "numpy" and config.cpu_isa != "auto":
        raise OPTIONS["cpu_isa"].error("chooses among the native kernels; it has no meaning with --backend numpy")


def _check_runner(config: EngineConfig) -> None:
    generates = config.runner == "generate" or config.task == "generate"
    pools = config.convert in ("embed", "classify") or config.task in ("embed", "classify", "score")
    if generates and (pools or config.pooler_config is not None):
        raise OPTIONS["runner"].error("generate has no use for --convert, --task and --pooler-config; leave one out")
    if config.task == "generate" and config.runner == "pooling":
        raise OPTIONS["task"].error("generate and --runner pooling contradict each other; leave one out")


def _check_swap(config: EngineConfig) -> None:
    if not config.enable_prefix_caching:
        raise OPTIONS["preemption_mode"].error(
            f"{config.preemption_mode} finds blocks through the prefix cache; leave out --no-enable-prefix-caching, or take "
            "recompute"
        )
    if config.swap_space == 0:
        raise OPTIONS["swap_space"].error(f"must be above 0 with --preemption-mode {config.preemption_mode}, got 0")
