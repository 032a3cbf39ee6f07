"""Benchmarks of this engine and of running servers, with the options of `vllm bench` where it has them."""
