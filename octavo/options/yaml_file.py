"""`--config FILE.yaml`: options under their own names, flat or in sections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from octavo.config import OPTIONS
from octavo.errors import ConfigError, did_you_mean
from octavo.options.configure import FIELD_NAMES, Given, plain_name, unknown
from octavo.options.vllm import NEUTRAL_VALUES, RETIRED

SECTIONS = tuple(
    f"{name}_config" for name in ("engine", "model", "load", "cache", "scheduler", "parallel", "device", "server")
)
_SECTION_NAMES = {"policy": "scheduling_policy", "chunked_prefill_enabled": "enable_chunked_prefill"}


def read_yaml(path: str) -> list[Given]:
    """The options of a YAML file. Raises ConfigError, naming file and key, for a file that cannot be read, an unknown
    section, a name given twice, or a mapping where a value belongs."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {_reason(error)}", parameter="config") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not valid YAML: {' '.join(str(error).split())}", parameter="config") from None
    except RecursionError:
        raise ConfigError(f"--config {path} is not valid YAML: it is nested too deeply", parameter="config") from None
    if content is None:
        return []
    if not isinstance(content, dict):
        raise ConfigError(
            f"--config {path} must hold option: value lines, not a {type(content).__name__}", parameter="config"
        )
    return _once_each(path, list(_options(path, content)))


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML's own loader would silently keep the last, and gives
    every scalar that is not what its tag says (2001-99-01, !!int x) as an error of YAML's."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            what = f"{str(node.value)[:60]!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is given twice", node.start_mark)
        return super().construct_mapping(node, deep=True)


def _options(path: str, content: dict[Any, Any], section: str = "") -> Iterator[Given]:
    for key, value in content.items():
        name = plain_name(str(key))
        spelling = f"{path}: {section}{key}"
        if not isinstance(value, dict) or name in NEUTRAL_VALUES or _holds_json(name):
            yield Given(_SECTION_NAMES.get(name, name) if section else name, value, spelling)
        elif section or name in FIELD_NAMES or name in RETIRED:
            raise ConfigError(f"{spelling} takes a value, not a mapping", parameter=name)
        elif name in SECTIONS:
            yield from _options(path, value, f"{key}.")
        else:
            raise _unknown_section(spelling, name)


def _holds_json(name: str) -> bool:
    return name in FIELD_NAMES and bool(OPTIONS[FIELD_NAMES[name]].metadata["holds_json"])


def _once_each(path: str, given: list[Given]) -> list[Given]:
    seen: dict[str, str] = {}
    for item in given:
        name = FIELD_NAMES.get(item.name, item.name)
        if name in seen:
            raise ConfigError(f"{item.spelling} is given twice, the other time as {seen[name]}", parameter=name)
        seen[name] = item.spelling.removeprefix(f"{path}: ")
    return given


def _unknown_section(spelling: str, name: str) -> ConfigError:
    near = did_you_mean(name, SECTIONS)
    return ConfigError(f"unknown section {spelling}{near}", parameter=name) if near else unknown(spelling)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
