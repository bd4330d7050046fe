"""Settings: four layers, and messages that name the layer, the key and what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import Settings, defaults, flat_keys, load
from context.errors import ConfigError
from context.images.base import FetchLimits, ImageLimits


def _load(tmp_path: Path, text: str | None = None, environment: dict[str, str] | None = None, **flags: Any) -> Settings:
    config = None
    if text is not None:
        config = tmp_path / "my.yaml"
        config.write_text(text)
    prefixed = {f"STILLFRAME_{key}": value for key, value in (environment or {}).items()}
    return load(config, environment=prefixed, flags=flags)


def _wrong(tmp_path: Path, *args: Any, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, *args, **kwargs)
    return caught.value


def test_defaults_are_the_shipped_file(tmp_path: Path) -> None:
    settings = _load(tmp_path)
    assert (settings.host, settings.port, settings.workers, settings.model) == ("127.0.0.1", 8000, 1, "demo")
    assert (settings.policy, settings.upstream, settings.auth.keys) == ("stable", (), {})
    assert settings.images.limits() == ImageLimits()
    assert settings.fetch.limits() == FetchLimits()


def test_each_layer_goes_over_the_one_before(tmp_path: Path) -> None:
    text = "port: 1001\nmodel: file\nhost: file\nserver:\n  keep_alive_seconds: 11\n"
    environment = {"PORT": "1002", "MODEL": "environment", "SERVER__SHUTDOWN_GRACE_SECONDS": "12"}
    settings = _load(tmp_path, text, environment, port=1003, model=None)
    assert (settings.port, settings.model, settings.host) == (1003, "environment", "file")
    assert (settings.server.keep_alive_seconds, settings.server.shutdown_grace_seconds) == (11, 12)
    assert settings.server.max_body_bytes == 67_108_864


def test_environment_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 1001")
    assert _load(tmp_path, None, {"CONFIG": str(tmp_path / "c.yaml")}).port == 1001
    assert _load(tmp_path, "port: 1002", {"CONFIG": str(tmp_path / "c.yaml")}).port == 1002


@pytest.mark.parametrize(
    ("environment", "path", "value"),
    [
        ({"UPSTREAM": "http://a:1/v1/, http://b:2/v1"}, "upstream", ("http://a:1/v1", "http://b:2/v1")),
        ({"UPSTREAM": "[http://a:1/v1]"}, "upstream", ("http://a:1/v1",)),
        ({"AUTH__KEYS__ALICE": "123"}, "auth.keys", {"alice": "123"}),
        ({"AUTH__KEYS": "{alice: k, bob: 'l'}"}, "auth.keys", {"alice": "k", "bob": "l"}),
        ({"FETCH__ALLOW_PRIVATE": "[10.0.0.0/8, 'fd00::/8']"}, "fetch.allow_private", ("10.0.0.0/8", "fd00::/8")),
        ({"FETCH__ENABLED": "false"}, "fetch.enabled", False),
        ({"UPSTREAMS__ACCEPTS_UUID": "false"}, "upstreams.accepts_uuid", False),
        ({"UPSTREAMS__ACCEPTS_UUID": "True"}, "upstreams.accepts_uuid", True),
        ({"UPSTREAMS__ACCEPTS_CACHE_SALT": "auto"}, "upstreams.accepts_cache_salt", "auto"),
        ({"UPSTREAMS__API_KEY": "0123"}, "upstreams.api_key", "0123"),
        ({"ADMIN_TOKEN": "1e3"}, "admin_token", "1e3"),
        ({"ENGINE__VLLM": "{max-model-len: 8192}"}, "engine.vllm", {"max-model-len": 8192}),
        ({"IMAGES__BACKGROUND": "[0, 0, 0]"}, "images.background", (0, 0, 0)),
        ({"INTERNAL_SETTINGS": "x", "DECLARE_TORCHVISION_OPERATORS": "1"}, "port", 8000),
    ],
)
def test_environment(tmp_path: Path, environment: dict[str, str], path: str, value: Any) -> None:
    found: Any = _load(tmp_path, None, environment)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_file_words_for_true_and_false(tmp_path: Path) -> None:
    assert _load(tmp_path, "upstreams: {accepts_uuid: false}").upstreams.accepts_uuid is False


def test_tenants_and_engine_options_of_all_layers_add_up(tmp_path: Path) -> None:
    text = "auth: {keys: {alice: a}}\nengine: {vllm: {max-model-len: 1, x: 2}}"
    settings = _load(tmp_path, text, {"AUTH__KEYS__BOB": "b", "ENGINE__VLLM": "{x: 3}"})
    assert settings.auth.keys == {"alice": "a", "bob": "b"}
    assert settings.engine.vllm == {"max-model-len": 1, "x": 3}


_WRONG_VALUES: list[tuple[str, Any, str]] = [
    ("port", 70_000, "65535"),
    ("port", "x", "a whole number"),
    ("workers", 0, "greater than or equal to 1"),
    ("host", "", "at least 1"),
    ("policy", "other", "one of observe, stable, sliding"),
    ("policy_rules", [{"policy": "stable"}], "needs a model, a tenant or a share"),
    ("policy_rules", [{"model": "a*", "policy": "other"}], "one of observe"),
    ("policy_rules", [{"model": "a*"}], "required"),
    ("policy_rules", [{"model": "a*", "policy": "stable", "when": 1}], "not permitted"),
    ("policy_headers", ["stable", "other"], "one of observe"),
    ("log_level", "loud", "'debug'"),
    ("upstream", ["ftp://a"], "http://127.0.0.1:8001/v1"),
    ("upstream", "nonsense", "http://127.0.0.1:8001/v1"),
    ("server", 5, "mapping"),
    ("server", None, "mapping"),
    ("server.body_timeout_seconds", 0, "greater than 0"),
    ("server.body_timeout_seconds", ".inf", "has an end"),
    ("server.body_timeout_seconds", ".nan", "has an end"),
    ("server.max_body_bytes", 10, "1024"),
    ("images.formats", [], "at least 1"),
    ("images.formats", ["SVG"], "'PNG'"),
    ("images.background", [0, 0, 300], "0 to 255"),
    ("images.background", [0, 0], "required"),
    ("images.animated", "all", "'reject'"),
    ("fetch.allow_private", ["10.0.0.0/99"], "10.0.0.0/99"),
    ("fetch.enabled", "perhaps", "true or false"),
    ("auth.keys", {"a": "k", "b": "k"}, "same key"),
    ("auth.keys", {"a": ""}, "empty"),
    ("auth.keys", {"a": 5}, "must be text"),
    ("engine.log_level", "loud", "'DEBUG'"),
    ("upstreams.accepts_uuid", "maybe", "'auto'"),
]


@pytest.mark.parametrize(("key", "value", "told"), _WRONG_VALUES)
def test_wrong_value_in_a_file(tmp_path: Path, key: str, value: Any, told: str) -> None:
    data: Any = float(value[1:]) if value in (".inf", ".nan") else value
    for name in reversed(key.split(".")):
        data = {name: data}
    error = _wrong(tmp_path, yaml.safe_dump(data))
    assert error.where == str(tmp_path / "my.yaml")
    assert error.key.startswith(key)
    assert told in error.reason
    assert str(error) == f"{error.where}: {error.key}: {error.reason}"


@pytest.mark.parametrize(("key", "value", "told"), _WRONG_VALUES)
def test_wrong_value_in_the_environment(tmp_path: Path, key: str, value: Any, told: str) -> None:
    if value in ("", None) and key == "host":
        value = ""
    name = key.upper().replace(".", "__")
    error = _wrong(tmp_path, None, {name: value if isinstance(value, str) else yaml.safe_dump(value)})
    assert error.where == f"environment variable STILLFRAME_{name}"
    assert error.key.startswith(key)
    assert told in error.reason


def test_wrong_flag(tmp_path: Path) -> None:
    error = _wrong(tmp_path, "port: 1", {"PORT": "2"}, port=-1)
    assert (error.where, error.key) == ("flag --port", "port")


def test_rules_of_several_keys_name_the_layer_that_broke_them(tmp_path: Path) -> None:
    error = _wrong(tmp_path, "port: 1", workers=2)
    assert (error.where, error.key) == ("flag --workers", "workers")
    assert "upstream" in error.reason
    error = _wrong(tmp_path, "server: {keep_alive_seconds: 5}", {"SERVER__MAX_BODY_BYTES": "999999999"})
    assert error.where == "environment variable STILLFRAME_SERVER__MAX_BODY_BYTES"
    assert error.key == "server.max_body_bytes"
    error = _wrong(tmp_path, "server: {inflight_body_bytes: 5000}")
    assert (error.where, error.key) == (str(tmp_path / "my.yaml"), "server.inflight_body_bytes")


def test_two_workers_with_an_upstream(tmp_path: Path) -> None:
    assert _load(tmp_path, None, {"UPSTREAM": "http://a"}, workers=2).workers == 2


@pytest.mark.parametrize(
    ("text", "key", "known"),
    [
        ("prot: 1", "prot", "port"),
        ("server: {max_body: 1}", "server.max_body", "max_body_bytes"),
        ("1: 2", "1", "port"),
    ],
)
def test_unknown_key_in_a_file(tmp_path: Path, text: str, key: str, known: str) -> None:
    error = _wrong(tmp_path, text)
    assert (error.where, error.key) == (str(tmp_path / "my.yaml"), key)
    assert known in error.reason


@pytest.mark.parametrize("name", ["PROT", "SERVER__MAX_BODY", "SERVER__", "_", "PORT__X", "PORT__X__Y", "SERVER__PORT"])
def test_unknown_variable(tmp_path: Path, name: str) -> None:
    assert _wrong(tmp_path, None, {name: "1"}).where == f"environment variable STILLFRAME_{name}"


def test_a_section_goes_before_its_parts_whatever_their_order(tmp_path: Path) -> None:
    both = [("SERVER__MAX_BODY_BYTES", "2000"), ("SERVER", "{keep_alive_seconds: 3, max_body_bytes: 3000}")]
    for order in (1, -1):
        server = _load(tmp_path, None, dict(both[::order])).server
        assert (server.max_body_bytes, server.keep_alive_seconds) == (2000, 3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "line 1, column 5: is not valid YAML"),
        ("port: 2020-13-45", "not valid YAML"),
        ("- 1", "must be a mapping"),
        ("just words", "must be a mapping"),
        ("!!python/object:os.system {}", "not valid YAML"),
        ("\x07", "not valid YAML"),
    ],
)
def test_files_that_are_no_settings(tmp_path: Path, text: str, told: str) -> None:
    error = _wrong(tmp_path, text)
    assert error.where == str(tmp_path / "my.yaml")
    assert told in error.reason


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("port: 1\nhost: a\nport: 2", "port", "1 and 3"),
        (
            "engine: {vllm: {image_kv: {memory_gib: 4}}}\nreuse_header: true\nengine: {kv_cache_gib: 1}",
            "engine",
            "1 and 3",
        ),
        ("engine:\n  vllm:\n    seed: 1\n    seed: 2", "engine.vllm.seed", "3 and 4"),
        (
            "policy_rules:\n- {policy: stable, model: a}\n- {policy: stable,\n   policy: batched}",
            "policy_rules.1.policy",
            "3 and 4",
        ),
    ],
)
def test_a_key_that_stands_twice_is_named_with_both_lines(tmp_path: Path, text: str, key: str, lines: str) -> None:
    error = _wrong(tmp_path, text)
    assert error.key == key
    assert f"stands twice, in lines {lines}" in error.reason


def test_what_an_alias_or_a_merge_says_again_is_not_twice(tmp_path: Path) -> None:
    text = "server: {keep_alive_seconds: &x 5}\nupstreams:\n  <<: {connections: 3}\n  connections: *x"
    assert _load(tmp_path, text).upstreams.connections == 5


def test_an_empty_file_is_fine(tmp_path: Path) -> None:
    assert _load(tmp_path, "# nothing").port == 8000


@pytest.mark.parametrize("text", ["[", "2020-13-45", "{a: "])
def test_variables_that_are_no_yaml(tmp_path: Path, text: str) -> None:
    assert str(_wrong(tmp_path, None, {"PORT": text})).startswith("environment variable STILLFRAME_PORT")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe.yaml")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 40)
    told = {
        "none.yaml": "there is no such file",
        ".": "is a folder",
        "binary.yaml": "is no text in UTF-8",
        "pipe.yaml": "is a pipe or a device",
        "huge.yaml": "is longer than",
        "/dev/zero": "is a pipe or a device",
    }
    for name, reason in told.items():
        with pytest.raises(ConfigError, match=reason):
            load(tmp_path / name, environment={})


def test_no_secret_in_messages(tmp_path: Path) -> None:
    secrets = {"UPSTREAM": "ftp://user:hunter2@host", "AUTH__KEYS": "{a: hunter2, b: hunter2}"}
    for name, value in secrets.items():
        assert "hunter2" not in str(_wrong(tmp_path, None, {name: value}))


def test_data_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert _load(tmp_path).data_path == tmp_path / ".local/share/stillframe"
    assert _load(tmp_path, "data_dir: ~/x").data_path == tmp_path / "x"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert _load(tmp_path).data_path == tmp_path / "xdg/stillframe"
    with pytest.raises(ConfigError, match="no such home folder"):
        _ = _load(tmp_path, "data_dir: ~nobody-of-this-name/x").data_path


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        _load(tmp_path).port = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_settings_survive_the_way_to_a_worker(tmp_path: Path) -> None:
    text = "upstreams: {accepts_uuid: false}\nauth: {keys: {a: k}}\npolicy_rules: [{tenant: a, policy: batched}]"
    settings = _load(tmp_path, text, {"UPSTREAM": "http://a"})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_flat_keys_are_all_leaves() -> None:
    keys = flat_keys()
    assert len(keys) == len(set(keys))
    assert {"port", "server.max_body_bytes", "auth.keys", "engine.vllm", "upstreams.retries", "upstream"} <= set(keys)
    for key in keys:
        value: Any = defaults()
        for name in key.split("."):
            value = value[name]
        assert not (isinstance(value, dict) and value)
    # The shipped file and the models have the same keys.
    shown: dict[str, Any] = load(environment={}).model_dump()
    assert sorted(flat_keys(shown)) == sorted(keys)
