"""Structured output: from a schema, expression or grammar to the set of tokens that may come next."""
