"""From StructuredOutputsParams to a grammar that is known to compile and to begin. What cannot be enforced is refused.

Only the grammar's own process (`octavo.grammar.worker`) runs this on what clients send: a text that takes too long, too
much memory or too deep a stack ends there.
"""

from __future__ import annotations

import json
import time
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from octavo.errors import ValidationError
from octavo.grammar.json_schema import enforceable, part_of, subschemas
from octavo.grammar.lark import Marks, envelope, json_options, literal, special_name, with_options
from octavo.grammar.limits import limits
from octavo.grammar.structural import structural_tag_grammar
from octavo.sampling.structured import StructuredOutputsParams

SECONDS_FOR_REASONS = 1.0  # to look for the part of a schema that is at fault
MAX_ERROR_CHARACTERS = 300
TRIED_BYTES = 64  # of a text that the grammar allows

_KEYWORDS = {"regex parse error": ".pattern", "oneOf constraints": ".oneOf", "Pointer ": ".$ref", "Resource ": ".$ref"}


class Judge:
    """Compiles grammars over single bytes and the model's special tokens, of which `special_tokens` are the texts."""

    def __init__(self, special_tokens: list[str]) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Bytes(special_tokens)), eos_token=_Bytes.eos_token_id, slices=[]
        )
        self._marks = Marks(special_tokens)

    def compile(self, params: StructuredOutputsParams) -> str:
        """The text of the grammar (`octavo.engine.request.Grammar`). ValidationError says what is wrong with it, or cannot
        be enforced, and where."""
        kind = params.given[0]
        if params.whitespace_pattern is not None:
            problem = self.problem(llguidance.LLMatcher.grammar_from_regex(params.whitespace_pattern))
            if problem is not None:
                raise _refused("whitespace_pattern", problem)
        if kind == "json":
            return self._json_schema(params)
        text = self._other(kind, params)
        problem = self.problem(text)
        if problem is not None:
            raise _refused(kind, problem)
        return text

    def problem(self, grammar: str) -> str | None:
        """Why a grammar cannot be used, if so: it does not compile within the limits, allows no text at all, or goes beyond
        the limits at the first bytes of a text."""
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits())
        for _ in range(TRIED_BYTES):
            if matcher.is_error():
                break
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_stopped() or matcher.is_error():
                break
            if not matcher.consume_token((allowed & -allowed).bit_length() - 1):
                break
        if matcher.is_error():
            return _reason(matcher.get_error())
        return "no text satisfies it" if matcher.is_stopped() and not matcher.is_accepting() else None

    def _other(self, kind: str, params: StructuredOutputsParams) -> str:
        if kind == "json_object":
            return _json_grammar({"type": "object"}, params)
        if kind == "regex":
            return llguidance.LLMatcher.grammar_from_regex(params.regex or "")
        if kind == "choice":
            choices = " | ".join(literal(choice) for choice in params.choice or ())
            return envelope(("choice", {"lark_grammar": f"start: {choices}"}))
        if kind == "structural_tag":
            return structural_tag_grammar(_decoded("structural_tag", params.structural_tag), self._marks)
        try:
            return envelope(("grammar", {"lark_grammar": any_to_lark(params.grammar or "")}))
        except Exception as error:  # the converter raises nothing narrower
            raise _refused(kind, str(error)) from None

    def _json_schema(self, params: StructuredOutputsParams) -> str:
        schema = _decoded("json", params.json) if isinstance(params.json, str) else params.json
        schema = enforceable(schema, closed=params.disable_additional_properties)
        grammar = _json_grammar(schema, params)
        problem = self.problem(grammar)
        if problem is None:
            return grammar
        path, problem = self._innermost_problem(schema, params, problem)
        keyword = next((name for text, name in _KEYWORDS.items() if text in problem), "")
        text = f"The JSON schema cannot be enforced: {path}{keyword}: {problem}"
        raise ValidationError(text, parameter="structured_outputs")

    def _innermost_problem(self, schema: Any, params: StructuredOutputsParams, problem: str) -> tuple[str, str]:
        """Path of the innermost schema that cannot be enforced by itself, and why."""
        end = time.monotonic() + SECONDS_FOR_REASONS
        for path, pointer in subschemas(schema)[:-1]:
            if time.monotonic() > end:
                break
            found = self.problem(_json_grammar(part_of(schema, pointer), params))
            if found is not None:
                return path, found.replace("/$defs/root", "")
        return "$", problem


class _Bytes:
    """A tokenizer as llguidance wants it: every byte is a token, and so is every special token."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, special_tokens: list[str]) -> None:
        others = [special_name(text).encode() for text in dict.fromkeys(special_tokens) if text]
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"<end of text>", *others]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _json_grammar(schema: Any, params: StructuredOutputsParams) -> str:
    options = json_options(params.whitespace_pattern, no_whitespace=params.disable_any_whitespace)
    return envelope(("json", {"json_schema": with_options(schema, options)}))


def _decoded(name: str, text: str | None) -> Any:
    try:
        return json.loads(text or "", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"structured_outputs.{name} is not JSON: {error}", parameter="structured_outputs") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refused(kind: str, problem: str) -> ValidationError:
    return ValidationError(
        f"structured_outputs.{kind} cannot be enforced: {_shortened(problem)}", parameter="structured_outputs"
    )


def _reason(error: str) -> str:
    """The library's text on one line, without what speaks of its own insides."""
    if "NoExtension" in error:
        return "no text satisfies it"
    lines = [line.strip() for line in error.splitlines()]
    ends = [line for line in lines if line.startswith("error: ")]
    if ends and "regex parse error" in error:
        return f"regex parse error: {ends[-1].removeprefix('error: ')}"
    told = [line for line in lines if line and not line.startswith(("<", "while processing", "^"))]
    return _shortened(" ".join(told[:1]))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + "..."
