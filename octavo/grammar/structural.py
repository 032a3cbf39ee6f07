"""Structural tags: free text in which some parts, once begun, must follow a grammar. Both forms that vLLM takes: the older
one (`structures` and `triggers`) and the nested one (`format`), as xgrammar describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.errors import ValidationError
from octavo.grammar.json_schema import enforceable
from octavo.grammar.lark import Marks, envelope, json_options, literal, with_options
from octavo.grammar.parameters import Form, parameters

_MAX_PARTS = 1_000
_ANY_TEXT = r"/(.|\n)*/"


def structural_tag_grammar(tag: Any, marks: Marks | None = None) -> str:
    """The grammar of a decoded structural tag, in which `marks` tells special tokens from texts. ValidationError names the
    place of what is wrong or not supported."""
    builder = _Builder(marks or Marks())
    if not isinstance(tag, dict):
        raise _error("", "must be an object")
    if "format" in tag:
        start = builder.format(tag["format"], "format")
    elif "structures" in tag:
        start = builder.triggered(_older_tags(tag), _strings(tag, "triggers", ""), "structures", tag)
    else:
        raise _error("", "must have 'format', or 'structures' and 'triggers'")
    return builder.finish(start)


def _error(path: str, text: str) -> ValidationError:
    place = f"structural_tag.{path}" if path else "structural_tag"
    return ValidationError(f"The structural tag cannot be enforced: {place} {text}.", parameter="structured_outputs")


def _inside(error: ValidationError, path: str) -> ValidationError:
    error.message = f"{error.message} (in structural_tag.{path})"
    return error


def _strings(value: dict[str, Any], name: str, path: str) -> list[str]:
    texts = value.get(name)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise _error(f"{path}.{name}".lstrip("."), "must be a list of one or more texts, none of them empty")
    return texts


def _string(value: dict[str, Any], name: str, path: str) -> str:
    text = value.get(name)
    if not isinstance(text, str):
        raise _error(f"{path}.{name}", "must be a text")
    return text


def _list(value: dict[str, Any], name: str, path: str) -> list[Any]:
    parts = value.get(name)
    if not isinstance(parts, list) or not parts:
        raise _error(f"{path}.{name}", "must be a list of one or more parts")
    return parts


def _older_tags(tag: dict[str, Any]) -> list[dict[str, Any]]:
    """As tags of the nested form."""
    structures = _list(tag, "structures", "")
    result = []
    for i, one in enumerate(structures):
        if not isinstance(one, dict):
            raise _error(f"structures[{i}]", "must be an object")
        content = {"type": "json_schema", "json_schema": one.get("schema", True)}
        result.append({"begin": one.get("begin"), "content": content, "end": one.get("end")})
    return result


class _Builder:
    """Collects the rules. Each method returns what stands for its part in the rule above it."""

    def __init__(self, marks: Marks) -> None:
        self.literal = marks.literal
        self._marks = marks
        self._rules: list[str] = []
        self._others: list[tuple[str, dict[str, Any]]] = []

    def finish(self, start: str) -> str:
        """The whole grammar."""
        return envelope(("main", {"lark_grammar": "\n".join([f"start: {start}", *self._rules])}), *self._others)

    def format(self, value: Any, path: str) -> str:
        """A part by its type."""
        kind = value.get("type") if isinstance(value, dict) else None
        maker = _FORMATS.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise _error(f"{path}.type", f"must be one of {', '.join(_FORMATS)}, got {kind!r:.60}")
        return maker(self, value, path)

    def rule(self, body: str, *, attributes: str = "") -> str:
        """A new rule."""
        name = f"part_{len(self._rules)}"
        if len(self._rules) >= _MAX_PARTS:
            raise _error("", f"can have at most {_MAX_PARTS} parts")
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def other(self, grammar: dict[str, Any]) -> str:
        """A grammar of its own."""
        name = f"other_{len(self._others)}"
        self._others.append((name, grammar))
        return self.rule(f"@{name}")

    def text(self, value: dict[str, Any], path: str) -> str:
        return self.rule(self.literal(_string(value, "value", path)))

    def json(self, value: dict[str, Any], path: str) -> str:
        try:
            schema = enforceable(value.get("json_schema", True))
        except ValidationError as error:
            raise _inside(error, path) from None
        return self.schema(schema)

    def schema(self, schema: Any) -> str:
        """A part that is JSON by an enforceable schema."""
        return self.other({"json_schema": with_options(schema, json_options())})

    def regex(self, value: dict[str, Any], path: str) -> str:
        from llguidance import regex_to_lark

        return self.rule(f"/{regex_to_lark(_string(value, 'pattern', path), use_ascii='')}/")

    def grammar(self, value: dict[str, Any], path: str) -> str:
        return self.other({"lark_grammar": _string(value, "grammar", path)})

    def any_text(self, value: dict[str, Any], path: str) -> str:
        excludes = _strings(value, "excludes", path) if value.get("excludes") else []
        return self.rule(self._free(_ANY_TEXT, excludes))

    def parameters(self, value: dict[str, Any], path: str) -> str:
        """See `octavo.grammar.parameters`: not a form of xgrammar's."""
        form = Form(_string(value, "begin", path), _string(value, "end", path), _strings(value, "excludes", path))
        try:
            schema = enforceable(value.get("json_schema"))
            return self.rule(parameters(self, form, schema, value.get("texts") or [], path))
        except ValidationError as error:
            raise _inside(error, path) from None

    def sequence(self, value: dict[str, Any], path: str) -> str:
        parts = _list(value, "elements", path)
        return self.rule(" ".join(self.format(part, f"{path}.elements[{i}]") for i, part in enumerate(parts)))

    def either(self, value: dict[str, Any], path: str) -> str:
        parts = _list(value, "elements", path)
        return self.rule(" | ".join(self.format(part, f"{path}.elements[{i}]") for i, part in enumerate(parts)))

    def tag(self, value: dict[str, Any], path: str) -> str:
        return self._tag(value, path, _string(value, "begin", path))

    def tags_with_separator(self, value: dict[str, Any], path: str) -> str:
        tags = [self.tag(one, f"{path}.tags[{i}]") for i, one in enumerate(_tags(value, path))]
        one = self.rule(" | ".join(tags))
        more = "" if value.get("stop_after_first") else f"({self.literal(_string(value, 'separator', path))} {one})*"
        some = self.rule(f"{one} {more}")
        return some if value.get("at_least_one") else self.rule(f'{some} | ""')

    def triggered_tags(self, value: dict[str, Any], path: str) -> str:
        return self.triggered(_tags(value, path), _strings(value, "triggers", path), f"{path}.tags", value)

    def triggered(self, tags: list[dict[str, Any]], triggers: list[str], path: str, options: dict[str, Any]) -> str:
        """Free text up to a trigger, then the tags that begin with it, and so on."""
        begins = [_string(tag, "begin", f"{path}[{i}]") for i, tag in enumerate(tags)]
        parts = []
        for trigger in triggers:
            chosen = [i for i, begin in enumerate(begins) if begin.startswith(trigger)]
            if not chosen:
                raise _error("triggers", f"has {trigger!r:.60}, with which no tag begins")
            rests = [self._tag(tags[i], f"{path}[{i}]", begins[i][len(trigger) :]) for i in chosen]
            free = self.until(trigger, "triggers")
            parts.append(self.rule(f"{free} ({' | '.join(rests)})"))
        for i, begin in enumerate(begins):
            if not any(begin.startswith(trigger) for trigger in triggers):
                raise _error(f"{path}[{i}].begin", "begins with none of the triggers")
        one = self.rule(" | ".join(parts))
        if options.get("stop_after_first"):
            return one if options.get("at_least_one") else self.rule(f"{one} | {self.rule(_ANY_TEXT)}")
        return self.rule(f"{one}{'+' if options.get('at_least_one') else '*'} {self.rule(_ANY_TEXT)}")

    def until(self, text: str, path: str, excludes: Sequence[str] = ()) -> str:
        """Free text, without any of `excludes`, up to the first place where `text` stands, and that."""
        (_, is_token), *more = self._marks.parts(text)
        if is_token:  # free text holds none
            return self.rule(f"{self._free(_ANY_TEXT, excludes)} {self.literal(text)}")
        if more:
            raise _error(path, f"has {text!r:.60}, where free text cannot end: it is part text, part special token")
        return self.rule(self._free(f"{_ANY_TEXT} {literal(text)}", excludes), attributes="[lazy]")

    def _free(self, body: str, excludes: Sequence[str]) -> str:
        """A text of this form with none of these in it. Special tokens are in no text."""
        texts = [literal(text) for text in excludes if self._marks.parts(text) == [(text, False)]]
        if not texts:
            return body
        name = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{name}: ({body}) & ~({_ANY_TEXT} ({' | '.join(texts)}) {_ANY_TEXT})")
        return name

    def _tag(self, tag: dict[str, Any], path: str, begin: str) -> str:
        content = tag.get("content")
        end = tag.get("end")
        if not isinstance(end, str):
            raise _error(f"{path}.end", "must be a text")
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            excludes = _strings(content, "excludes", f"{path}.content") if content.get("excludes") else []
            return self.rule(f"{self.literal(begin)} {self.until(end, f'{path}.end', excludes)}")
        return self.rule(f"{self.literal(begin)} {self.format(content, f'{path}.content')} {self.literal(end)}")


def _tags(value: dict[str, Any], path: str) -> list[dict[str, Any]]:
    tags = _list(value, "tags", path)
    for i, tag in enumerate(tags):
        if not isinstance(tag, dict):
            raise _error(f"{path}.tags[{i}]", "must be an object")
    return tags


_FORMATS: Mapping[str, Callable[[_Builder, dict[str, Any], str], str]] = {
    "const_string": _Builder.text,
    "json_schema": _Builder.json,
    "regex": _Builder.regex,
    "grammar": _Builder.grammar,
    "any_text": _Builder.any_text,
    "parameters": _Builder.parameters,
    "sequence": _Builder.sequence,
    "or": _Builder.either,
    "tag": _Builder.tag,
    "tags_with_separator": _Builder.tags_with_separator,
    "triggered_tags": _Builder.triggered_tags,
}
