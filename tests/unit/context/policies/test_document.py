"""Policy files: what they make, what is wrong with them, and what the presets, their README and the schema say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from context.errors import ConfigError
from context.layout.control import FAMILIES
from context.policies.batched import Batched, BreakEven
from context.policies.choice import load_policy
from context.policies.document import KINDS, PRESETS, policy_schema
from context.policies.keep import OBSERVE, STABLE
from context.policies.parameters import Parameter, parameters, values
from context.policies.quotas import Quotas
from context.policies.reading import PolicyFileError
from context.policies.reference import Reference
from context.policies.sliding import Sliding
from context.policies.summary import Summary
from metrics.preview import preview

FOLDER = Path(__file__).parents[4] / "configs" / "policies"
HEAD = 'name: mine\nversion: "1"\nkind: {kind}\n'


def write(folder: Path, text: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(text)
    return str(file)


def faults(folder: Path, text: str) -> list[tuple[int, str, str]]:
    """What is wrong with a file: line, key, reason."""
    with pytest.raises(PolicyFileError) as caught:
        load_policy(write(folder, text))
    for fault in caught.value.faults:
        assert f"{folder / 'mine.yaml'}:{fault.line}: {fault.key}" in str(caught.value)
        assert fault.reason in str(caught.value)
    return [(fault.line, fault.key, fault.reason) for fault in caught.value.faults]


def only(folder: Path, text: str) -> tuple[int, str, str]:
    (fault,) = faults(folder, text)
    return fault


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("observe", OBSERVE),
        ("stable", STABLE),
        ("sliding", Sliding()),
        ("batched", Batched()),
        ("reference", Reference()),
        ("summary", Summary()),
    ],
)
def test_a_preset_is_its_kind_with_all_defaults_written_out(name: str, policy: Any) -> None:
    loaded = load_policy(name)
    assert loaded.shaping == policy
    assert (loaded.name, loaded.version, loaded.rules, loaded.quotas) == (name, "1", policy.rules, Quotas())
    bare = {"name": name, "version": "1", "kind": name, "description": loaded.document.description}
    assert KINDS[name].model_validate(bare) == loaded.document
    written: Any = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    keys = [one.key for one in parameters(name)]
    assert [key for key in keys if key in values(loaded.document) and not _stands_in(written, key)] == []


def _stands_in(data: Any, key: str) -> bool:
    for name in key.split("."):
        if name not in data:
            return False
        data = data[name]
    return True


def test_every_key_reaches_the_policy(tmp_path: Path) -> None:
    text = HEAD.format(kind="batched") + (
        "batched: {unit: visual_tokens, high: 9000, low: 2000, defer_client_deletions: false, pin_first_images: 2,\n"
        "          break_even: {expected_turns: 60, read_price: 0.1, write_price: 1}}\n"
        "layout: {canonical_tools: false, neutralize: llava, volatile: tail, volatile_roles: [user],\n"
        '         tool_images: hoist, patterns: [{name: build, regex: "Build ([0-9]{1,9})"}]}\n'
        "quotas: {max_images: 1, max_unique_images: 2, max_new_images: 3, max_visual_tokens: 4}\n"
    )
    loaded = load_policy(write(tmp_path, text))
    policy = loaded.shaping
    assert isinstance(policy, Batched)
    assert (policy.unit, policy.high, policy.low) == ("visual_tokens", 9000, 2000)
    assert (policy.defer_client_deletions, policy.pin_first_images) == (False, 2)
    assert policy.break_even == BreakEven(60, 0.1, 1)
    assert loaded.quotas == Quotas(1, 2, 3, 4)
    rules = loaded.rules
    assert rules.control_tokens is not None
    assert set(rules.control_tokens.tokens) == set(FAMILIES["llava"])
    assert (rules.canonical_tools, rules.volatile, rules.tool_images) == (False, "tail", "hoist")
    assert (rules.volatile_roles, rules.defer_client_window) == (frozenset({"user"}), False)
    assert [one.kind for one in rules.patterns.own] == ["build"]


def test_the_words_off_and_no_are_read_as_written(tmp_path: Path) -> None:
    """PyYAML makes false of them."""
    text = HEAD.format(kind="stable") + "layout: {neutralize: off}\nmatch: {reencoded_images: off}\n"
    assert load_policy(write(tmp_path, text)).rules.control_tokens is None


@pytest.mark.parametrize(
    ("kind", "rest", "line", "key", "told"),
    [
        ("batched", "batched: {high: 3, low: 3}", 4, "batched.high", "must be above low, which is 3"),
        ("batched", "batched:\n  low: 2\n  high: x", 6, "batched.high", "must be a whole number"),
        ("batched", "batched:\n  low: -1", 5, "batched.low", "must be greater than or equal to 0"),
        ("batched", "batched: {unit: bytes}", 4, "batched.unit", "must be one of 'images'"),
        ("batched", "batched: {highest: 3}", 4, "batched.highest", "known here: unit, high, low"),
        (
            "batched",
            "batched: {break_even: {read_price: 1, write_price: 1}}",
            4,
            "batched.break_even.expected_turns",
            "add",
        ),
        (
            "batched",
            "batched:\n  break_even:\n    expected_turns: 1\n    read_price: 1\n    write_price: 0.1",
            8,
            "batched.break_even.write_price",
            "must be at least read_price",
        ),
        ("sliding", "batched: {}", 4, "batched", "there is no such key"),
        ("sliding", "sliding: 5", 4, "sliding", "must be a mapping; known in it: keep_images, marker"),
        ("sliding", "sliding: {marker: 5}", 4, "sliding.marker", "must be true or false"),
        ("reference", "reference: {id_chars: 8}", 4, "reference.id_chars", "equal to 12"),
        ("summary", "summary: {high: 10, low: 20}", 4, "summary.high", "must be above low"),
        ("summary", "summary: {low: 100}", 4, "summary.low", "must be above max_tokens"),
        ("observe", "layout: {canonical_tools: true}", 4, "layout.canonical_tools", "known here: patterns"),
        ("stable", "match: {max_distance: 65}", 4, "match.max_distance", "equal to 64"),
        ("stable", "quotas: {max_images: .inf}", 4, "quotas.max_images", "must be a whole number"),
        ("stable", "layout: {patterns: 5}", 4, "layout.patterns", "must be a list"),
        ("stable", "description: [a]", 4, "description", "must be text"),
        ("stable", f"description: {'a' * 1001}", 4, "description", "must have at most 1000 characters"),
        ("summary", "summary: {instruction: ''}", 4, "summary.instruction", "must have at least 1 characters"),
        ("stable", f"layout: {{volatile_roles: [{'a, ' * 9}]}}", 4, "layout.volatile_roles", "at most 8 entries"),
        (
            "stable",
            "layout:\n  patterns:\n    - {name: b, regex: '(a+)+'}",
            6,
            "layout.patterns[0].regex",
            "without an end",
        ),
        ("stable", "layout: {patterns: [{name: now, regex: a}]}", 4, "layout.patterns[0].name", "built-in kind"),
        ("stable", "layout: {patterns: [{name: b, regex: '('}]}", 4, "layout.patterns[0].regex", "not a valid regular"),
        ("stable", "layout: {patterns: [{name: b, regex: a}, {name: b, regex: c}]}", 4, "layout", "same name"),
        ("stable", "layout: {patterns: [{regex: a}]}", 4, "layout.patterns[0].name", "is missing; add it"),
        ("stable", "layout: {}\nmatch: {}\nlayout: {}", 6, "layout", "stands twice, first in line 4"),
        ("stable", "layout: &x {}\nmatch: *x", 4, "match", "is an alias"),
    ],
)
def test_a_fault_names_its_line_its_key_and_the_remedy(
    tmp_path: Path, kind: str, rest: str, line: int, key: str, told: str
) -> None:
    found = only(tmp_path, HEAD.format(kind=kind) + rest)
    assert found[:2] == (line, key)
    assert told in found[2]


def test_all_faults_are_listed_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "name: No Name\nversion: 1\nkind: batched\nlayot: {}\nbatched:\n  high: many\n  low: -3\n"
    assert [fault[:2] for fault in faults(tmp_path, text)] == [
        (1, "name"),
        (2, "version"),
        (4, "layot"),
        (6, "batched.high"),
        (7, "batched.low"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "key", "told"),
    [
        ("", 1, "", "must be a mapping"),
        ("- a", 1, "", "must be a mapping"),
        ("name: mine\nkind: nonsense\nversion: a", 2, "kind", "one of observe, stable, sliding, batched"),
        ("name: mine\nversion: a", 1, "kind", "one of observe"),
        ("kind: stable\nname: mine", 1, "version", "is missing"),
        ("a: [\nb", 2, "", "is not valid YAML"),
        ("!!python/object:os.system {}", 1, "", "is not valid YAML"),
        ("a: " + "[" * 1500, 1, "", "is not valid YAML"),
        ("a: " + "[" * 30 + "]" * 30, 1, "a" + "[0]" * 16, "nests too deep"),
    ],
)
def test_files_that_are_no_policies(tmp_path: Path, text: str, line: int, key: str, told: str) -> None:
    found = only(tmp_path, text)
    assert found[:2] == (line, key)
    assert told in found[2]


def test_a_preset_that_was_changed_needs_a_name_of_its_own(tmp_path: Path) -> None:
    text = (FOLDER / "batched.yaml").read_text()
    assert load_policy(write(tmp_path, text)).document == load_policy("batched").document
    found = only(tmp_path, text.replace("high: 20", "high: 30"))
    assert found[1] == "name"
    assert "is a preset's name" in found[2]
    assert (
        load_policy(write(tmp_path, text.replace("high: 20", "high: 30").replace("name: b", "name: my-b"))).name
        == "my-batched"
    )


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no policy 'other'; take one of observe"):
        load_policy("other")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (
        tmp_path / "none.yaml",
        tmp_path / "binary.yaml",
        f"{tmp_path}/",
        "~nobody-of-this-name/x.yaml",
        "a\0/b",
    ):
        with pytest.raises(ConfigError, match=r"no such file|cannot be read|is a folder|is no text"):
            load_policy(str(path))


@pytest.mark.parametrize("name", PRESETS)
def test_the_schema_takes_the_presets_and_refuses_what_the_gateway_does(name: str) -> None:
    # Its types are those of any JSON value, which a strict checker does not know.
    check: Any = jsonschema.Draft202012Validator(policy_schema())
    data: Any = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    check.validate(data)
    for wrong in ({"kind": "other"}, {"nonsense": 1}, {"version": 1}, {"layout": 5}):
        assert not check.is_valid({**data, **wrong})


def test_the_readme_names_every_parameter_with_its_default() -> None:
    page = (FOLDER / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (required|`[^|]*`) \|", page, re.M))
    expected = {one.key: _default(one) for kind in PRESETS for one in parameters(kind)}
    assert rows == expected
    assert [kind for kind in PRESETS if f"\n## {kind}\n" not in page] == []


def _default(one: Parameter) -> str:
    """As the README has it: a value as YAML writes it."""
    if one.required:
        return "required"
    text = yaml.safe_dump(one.default, default_flow_style=True, width=9999)
    return f"`{text.strip().removesuffix('...').strip()}`"


async def test_the_figures_of_the_readme_are_those_of_the_preview() -> None:
    """Within a tenth: estimates of tokens may become better."""
    page = (FOLDER / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \| ([\d,]+) \| (\d+) \|$", page, re.M)
    assert [row[0] for row in rows] == list(PRESETS)
    for name, prompt, computed, _, longest, breaks in rows:
        turns = await preview(load_policy(name), 60)
        sums = (sum(turn.prompt_tokens for turn in turns), sum(turn.computed_tokens for turn in turns))
        most = max(turn.prompt_tokens for turn in turns)
        for told, found in zip((prompt, computed, longest), (*sums, most), strict=True):
            assert int(told.replace(",", "")) == pytest.approx(found, rel=0.1)
        assert sum(bool(turn.cause) for turn in turns) == int(breaks)
