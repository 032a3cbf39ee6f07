"""Sampling: parameters, the order of the steps, logprobs and the counter-based generator."""
