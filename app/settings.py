"""Settings: `configs/default.yaml`, then `--config FILE`, then the environment, then flags.

One place decides what a value means: `Settings` and its sections (`app/sections.py`). A wrong value stops the start and
names file, key and remedy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from app.option_layers import check_options, respell
from app.sections import (
    Auth,
    ContextSection,
    DashboardSection,
    EngineSection,
    Estimates,
    Fetch,
    Images,
    LedgerSection,
    Otel,
    PolicyName,
    PolicyRuleSection,
    PriceSection,
    RecordsSection,
    Section,
    Server,
    Upstreams,
)
from context.errors import ConfigError
from context.files import UnusableFile, read_text
from context.policies.choice import Policies, share_spans
from context.policies.reading import expected, tuples
from context.yaml import WordsLoader, doubled
from metrics.records.prices import Prices
from metrics.records.store import RecordLimits

ENVIRONMENT_PREFIX = "STILLFRAME_"
DEFAULTS = "configs/default.yaml"
_MAX_FILE_BYTES = 1024 * 1024


class Settings(Section):
    """Everything that can be set, as one immutable value."""

    host: str = Field(min_length=1)
    port: int = Field(ge=0, le=65_535)
    workers: int = Field(ge=1)
    model: str = Field(min_length=1)
    upstream: tuple[str, ...]
    policy: PolicyName
    policy_rules: tuple[PolicyRuleSection, ...]
    policy_headers: tuple[PolicyName, ...]
    reuse_header: bool
    prices: tuple[PriceSection, ...]
    data_dir: str
    log_level: Literal["debug", "info", "warning", "error"]
    admin_token: str
    auth: Auth
    server: Server
    images: Images
    fetch: Fetch
    ledger: LedgerSection
    records: RecordsSection
    dashboard: DashboardSection
    context: ContextSection
    estimates: Estimates
    otel: Otel
    engine: EngineSection
    upstreams: Upstreams

    @field_validator("upstream", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part for part in value.replace(",", " ").split() if part)
        # A worker reads it from JSON.
        return tuples(value)

    @field_validator("upstream")
    @classmethod
    def _urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        from urllib.parse import urlsplit

        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                # Not the value: it may hold a password.
                raise ValueError("expected http or https URLs such as http://127.0.0.1:8001/v1")
        return tuple(url.rstrip("/") for url in urls)

    @model_validator(mode="after")
    def _workers_need_an_upstream(self) -> Settings:
        if self.workers > 1 and not self.upstream:
            raise ValueError("workers above 1 need an upstream: the embedded engine lives in one process")
        return self

    @model_validator(mode="after")
    def _rules_name_known_tenants(self) -> Settings:
        known = self.auth.keys
        if known and any(rule.tenant is not None and rule.tenant not in known for rule in self.policy_rules):
            raise ValueError(f"policy_rules name a tenant that auth.keys does not have: {', '.join(sorted(known))}")
        return self

    @model_validator(mode="after")
    def _shares_are_a_whole_at_most(self) -> Settings:
        try:
            share_spans([rule.rule() for rule in self.policy_rules])
        except ConfigError as error:
            raise ValueError(f"policy_rules: {error.reason}") from error
        return self

    def policies(self) -> Policies:
        """The policies that these settings name, loaded.

        Raises:
            ConfigError: a policy's file cannot be used.
        """
        return Policies.load(self.policy, [rule.rule() for rule in self.policy_rules], self.policy_headers)

    def record_limits(self) -> RecordLimits:
        """The bounds of the records, which must leave room for the ledger's turns in the file of both."""
        bounds = self.records.model_dump()
        return RecordLimits(**bounds | {"max_bytes": min(self.records.max_bytes, self.ledger.max_bytes // 4)})

    def price_table(self) -> Prices:
        """What tokens cost."""
        return Prices([price.price() for price in self.prices])

    @property
    def data_path(self) -> Path:
        """Where the gateway keeps its files.

        Raises:
            ConfigError: it lies in a home folder, and there is none.
        """
        try:
            if self.data_dir:
                return Path(self.data_dir).expanduser()
            home = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
            return Path(home) / "stillframe"
        except RuntimeError as error:
            raise ConfigError(
                "settings", "data_dir", "there is no such home folder; give a whole path, such as /var/lib/stillframe"
            ) from error


def defaults() -> dict[str, Any]:
    """The shipped `configs/default.yaml`."""
    return yaml.safe_load(resources.files("configs").joinpath("default.yaml").read_text())


def load(
    config: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Read all layers.

    Args:
        config: a YAML file of the same keys; a partial one is enough.
        environment: variables; the process's own by default. `STILLFRAME_CONFIG` names a file too.
        flags: top-level keys from the command line; None values are not set.

    Raises:
        ConfigError: names the layer, the key and what to do.
    """
    environment = os.environ if environment is None else environment
    if config is None and environment.get(ENVIRONMENT_PREFIX + "CONFIG"):
        config = Path(environment[ENVIRONMENT_PREFIX + "CONFIG"])
    values = defaults()
    origin: dict[tuple[str, ...], str] = {}
    if config is not None:
        _merge(values, _read_file(config), str(config), origin)
    for where, variable in _read_environment(environment, defaults()):
        _merge(values, variable, where, origin)
    _merge(values, {key: value for key, value in (flags or {}).items() if value is not None}, "flag", origin)
    try:
        settings = Settings.model_validate(_typed(values))
    except ValidationError as error:
        raise _explain(error, origin) from error
    check_options(settings.engine.vllm, {path[2]: where for path, where in origin.items() if path[:2] == _VLLM})
    return settings


def _typed(values: Mapping[str, Any], at: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values with tuples for lists, as the sections have them; vLLM's own stay as they are."""
    return {
        key: (value if (*at, key) == _VLLM else _typed(cast("dict[str, Any]", value), (*at, key)))
        if isinstance(value, dict)
        else tuples(value)
        for key, value in values.items()
    }


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path, _MAX_FILE_BYTES)
    except UnusableFile as error:
        raise ConfigError(str(path), "", str(error)) from error
    try:
        data: Any = yaml.load(text, WordsLoader)  # noqa: S506 (it is a safe loader)
        node = cast("yaml.Node | None", yaml.compose(text, WordsLoader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(str(path), "", f"{place}is not valid YAML") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a date that no calendar has.
        raise ConfigError(str(path), "", "is not valid YAML") from error
    if (twice := doubled(node)) is not None:
        key, first, second = twice
        raise ConfigError(str(path), key, f"stands twice, in lines {first} and {second}; write it once")
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(str(path), "", "must be a mapping of settings")
    return data  # pyright: ignore[reportUnknownVariableType]


def _read_environment(environment: Mapping[str, str], known: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each variable with the settings it makes; a section's own variable comes before those of its parts."""
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in (ENVIRONMENT_PREFIX + "CONFIG", *_INTERNAL):
            continue
        path, text = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"), environment[name]
        try:
            # Values are YAML as in a file, so that lists and mappings can be given; plain text stays text.
            value: Any = text if _is_text(known, path) else yaml.load(text, WordsLoader)  # noqa: S506 (it is safe)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"environment variable {name}", "", "is not valid YAML") from error
        for part in reversed(path):
            value = {part: value}
        yield f"environment variable {name}", value


def _is_text(known: Mapping[str, Any], path: list[str]) -> bool:
    return isinstance(_lookup(known, path), str) or (len(path) == 3 and path[:2] == ["auth", "keys"])


# Set by the gateway for its own child processes.
_INTERNAL = (
    ENVIRONMENT_PREFIX + "END_WITH_PARENT",
    ENVIRONMENT_PREFIX + "DECLARE_TORCHVISION_OPERATORS",
    ENVIRONMENT_PREFIX + "INTERNAL_SETTINGS",
)
_VLLM = ("engine", "vllm")
_OPEN = {_VLLM, ("auth", "keys")}


def _lookup(values: Mapping[str, Any], path: list[str]) -> Any:
    found: Any = values
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return None
        found = cast("dict[str, Any]", found)[part]
    return found


def _merge(
    into: dict[str, Any],
    layer: Mapping[str, Any],
    where: str,
    origin: dict[tuple[str, ...], str],
    at: tuple[str, ...] = (),
) -> None:
    for key, value in layer.items():
        path = (*at, str(key))
        if at not in _OPEN and key not in into:
            near = ", ".join(sorted(map(str, into)))
            raise ConfigError(_named(where, path), ".".join(path), f"there is no such setting; known here: {near}")
        if isinstance(into.get(key), dict) and at not in _OPEN:
            if not isinstance(value, Mapping):
                raise ConfigError(_named(where, path), ".".join(path), "expected a mapping of settings")
            if path == _VLLM:
                respell(into[key], value, where)  # pyright: ignore[reportUnknownArgumentType]
            _merge(into[key], value, where, origin, path)  # pyright: ignore[reportUnknownArgumentType]
        else:
            into[key] = value
            origin[path] = where


def _named(where: str, path: Sequence[str]) -> str:
    """The layer; of the command line, the very flag."""
    return f"flag --{path[0]}" if where == "flag" else where


def _explain(error: ValidationError, origin: Mapping[tuple[str, ...], str]) -> ConfigError:
    """The first fault, with the layer that brought it and its key."""
    first = error.errors(include_url=False)[0]
    # Only its type is told: it may be a key or a password.
    is_text = isinstance(first["input"], str)
    path = tuple(str(part) for part in first["loc"])
    reason = expected(first["type"], is_text=is_text) or first["msg"].removeprefix("Value error, ")
    setter = next((path[:length] for length in range(len(path), 0, -1) if path[:length] in origin), None)
    if setter is None:
        # A rule of several keys: the latest layer that set one of those it speaks of.
        told = [at for at in origin if at[: len(path)] == path and at[len(path) :] and at[-1] in reason]
        setter = path = told[-1] if told else path
    where = _named(origin[setter], setter) if setter in origin else DEFAULTS
    keys = [part for part in path if not part.startswith(("literal[", "function-"))]
    return ConfigError(where, ".".join(keys), reason)


def flat_keys(values: Mapping[str, Any] | None = None, at: str = "") -> list[str]:
    """Every setting as a dotted key, for documentation and its test."""
    keys: list[str] = []
    for key, value in (defaults() if values is None else values).items():
        path = f"{at}{key}"
        if isinstance(value, dict) and value:
            keys += flat_keys(value, f"{path}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            keys.append(path)
    return keys


__all__ = ["ENVIRONMENT_PREFIX", "Settings", "defaults", "flat_keys", "load"]
