"""YAML as editors and the JSON schema read it: the core schema of version 1.2.

PyYAML reads 1.1, where `no` and `off` are booleans, `010` is eight, `1:30` is ninety, and `1e3` is a text.
Source: YAML 1.2.2, section 10.3.2, tag resolution.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_PLAIN: tuple[tuple[str, str, str], ...] = (
    ("null", r"null|Null|NULL|~|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
)


class CoreLoader(yaml.SafeLoader):
    """A safe loader that knows no other plain scalars than null, true, false and numbers."""


class WordsLoader(yaml.SafeLoader):
    """PyYAML's own, for the environment, where `on` and `no` are what people write; with numbers such as `1e3`."""


def doubled(node: yaml.Node | None) -> tuple[str, int, int] | None:
    """The first key that stands twice in one mapping, of which PyYAML would take the last: its dotted place, and both
    lines from 1 on. None where there is none.
    """
    waiting: list[tuple[tuple[str, ...], yaml.Node]] = [] if node is None else [((), node)]
    seen: set[int] = set()
    while waiting:
        at, one = waiting.pop()
        # What an alias names was looked at where it stands.
        if id(one) in seen or isinstance(one, yaml.ScalarNode):
            continue
        seen.add(id(one))
        if isinstance(one, yaml.SequenceNode):
            parts: list[yaml.Node] = one.value
            waiting += [((*at, str(index)), part) for index, part in reversed(list(enumerate(parts)))]
            continue
        lines: dict[str, int] = {}
        pairs: list[tuple[yaml.Node, yaml.Node]] = one.value
        for key, _ in pairs:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines and name != "<<":
                return ".".join((*at, name)), lines[name], line
            lines[name] = line
        waiting += [((*at, str(key.value)), value) for key, value in reversed(pairs)]
    return None


def _whole(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text: str = node.value
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _resolve(loader: Any, name: str, pattern: str, first: str) -> None:
    firsts = [*first, ""] if name == "null" else list(first)
    loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"(?:{pattern})$"), firsts)


# In place of what the loader inherits.
setattr(CoreLoader, "yaml_implicit_resolvers", {})  # noqa: B010 (its stub has it as an instance's)
for _plain in _PLAIN:
    _resolve(CoreLoader, *_plain)
CoreLoader.add_constructor("tag:yaml.org,2002:int", _whole)
_resolve(WordsLoader, "float", r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+", "-+0123456789")
