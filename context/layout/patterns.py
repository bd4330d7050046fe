"""Own patterns of a policy for volatile text, checked so that no text can make them slow.

`re` backtracks. A pattern is refused unless one attempt at one place takes at most `MAX_WAYS` ways: every repetition
is bounded, none holds another, and there is no back-reference or assertion. The text that own patterns are tried on is
bounded too (`MAX_OWN_CHARACTERS`), so the whole cost is bounded by a constant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from context.errors import ConfigError

BUILTIN_KINDS = ("now", "datetime", "time", "epoch", "uuid", "id")
MAX_WAYS = 1024
MAX_REPEATS = 256
MAX_PATTERN_CHARACTERS = 512
MAX_OWN_CHARACTERS = 128 * 1024
_KIND = re.compile(r"[a-z][a-z_]{0,31}")
_TOKEN = re.compile(
    r"""\\. | \[\^?\]?(?:\\.|[^\]\\])*\] | \(\?: | \(\? | \( | \) | \{[0-9]*,?[0-9]*\} | [*+?|] | .""", re.X | re.S
)
_NO_END = "it has a repetition without an end. Write {1,64} in place of +, and {0,64} in place of *"


@dataclass(frozen=True, slots=True)
class OwnPattern:
    """A compiled pattern. Its first group is the value; without a group the whole match is."""

    kind: str
    regex: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Patterns:
    """What counts as volatile: the built-in kinds that are on, and a policy's own patterns."""

    builtin: frozenset[str] = frozenset(BUILTIN_KINDS)
    own: tuple[OwnPattern, ...] = ()


BUILTIN = Patterns()


def compile_patterns(own: Mapping[str, str], *, where: str, key: str = "volatile.patterns") -> tuple[OwnPattern, ...]:
    """Own patterns by kind, ready to use.

    Args:
        own: regular expressions by the word for what they find, such as `{"build": "Build ([0-9]{1,9})"}`.
        where, key: the policy's file and the key in it, for errors.

    Raises:
        ConfigError: a kind that is no new lower-case word; a pattern that is not valid, too long, matches nothing at
            all, or could be slow.
    """
    made: list[OwnPattern] = []
    for kind, pattern in own.items():
        at = f"{key}.{kind}"
        if not _KIND.fullmatch(kind) or kind in BUILTIN_KINDS:
            raise ConfigError(
                where, at, "a kind is a word of a-z and _ that is not a built-in kind. Choose another name."
            )
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ConfigError(where, at, f"the pattern is longer than {MAX_PATTERN_CHARACTERS} characters. Split it.")
        try:
            regex = re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            raise ConfigError(where, at, "not a valid regular expression. Test it with Python's re module.") from None
        if reason := _slow(pattern):
            raise ConfigError(where, at, f"the pattern could be slow on some texts: {reason}.")
        if regex.match(""):
            raise ConfigError(where, at, "the pattern matches the empty text. Make one of its parts required.")
        made.append(OwnPattern(kind, regex))
    return tuple(made)


@dataclass(slots=True)
class _Group:
    """A group while its end is looked for: does it repeat or choose, and in how many ways does it choose?"""

    varies: bool = False
    choices: int = field(default=1)


def _slow(pattern: str) -> str:
    """Why a valid pattern is refused; empty when it is not."""
    ways = 1
    stack = [_Group()]
    last = ""
    closed = _Group()
    for token in _TOKEN.findall(pattern):
        if token == "(?" or (token[0] == "\\" and token[1:].isdigit() and token != "\\0"):
            return "back-references, assertions, flags and named groups are not taken. Use plain groups"
        is_repeat = token[0] in "*+?" or (token[0] == "{" and token != "{}" and len(token) > 1)
        if token in ("(", "(?:"):
            stack.append(_Group())
        elif token == ")" and len(stack) > 1:
            closed = stack.pop()
            ways *= closed.choices
            stack[-1].varies |= closed.varies
        elif token == "|":
            stack[-1].choices += 1
            stack[-1].varies = True
        elif is_repeat and not (token == "?" and last == "repeat"):
            found = _bounds(token)
            if found is None:
                return _NO_END
            if found[1] > MAX_REPEATS:
                return f"it repeats more than {MAX_REPEATS} times"
            if last == ")" and closed.varies and found[1] > 1:
                return "a repetition holds another one, or a choice. Write it out"
            ways *= found[1] - found[0] + 1
            stack[-1].varies = True
        last = "repeat" if is_repeat else token
    if ways * stack[0].choices > MAX_WAYS:
        return f"its repetitions and choices multiply to more than {MAX_WAYS} ways. Use smaller bounds"
    return ""


def _bounds(token: str) -> tuple[int, int] | None:
    """The fewest and most times of a repetition; None without an end."""
    if token == "?":
        return 0, 1
    low, comma, high = token.strip("{}").partition(",")
    if token[0] != "{" or (comma and not high):
        return None
    return int(low or 0), int(high or low)
