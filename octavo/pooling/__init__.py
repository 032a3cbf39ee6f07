"""Pooling models: what they embed, classify and score, by the model's files and the options."""
