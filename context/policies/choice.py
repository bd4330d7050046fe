"""Which policy is in force for a request: loaded once at the start, chosen by header, model or tenant."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from blake3 import blake3

from context.errors import ConfigError, RequestError
from context.files import UnusableFile, read_text
from context.policies.base import Policy, Rules, Shaped, View
from context.policies.document import DOCUMENTS, PRESETS, AnyDocument, Match, ReusePart
from context.policies.quotas import Quotas
from context.policies.reading import MAX_BYTES, Fault, PolicyFileError, read_document, tuples
from context.reuse import Reuse

POLICY_HEADER = "x-stillframe-policy"
# What an engine's model is called is shorter; a pattern is not tried on a client's megabyte.
_MOST_MODEL_CHARACTERS = 512
# Ten tenths come to a little less or more than 1.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy as its file has it: what shapes the context, and what a request may hold at most."""

    document: AnyDocument
    shaping: Policy
    quotas: Quotas

    @property
    def name(self) -> str:
        """Its name in headers and records."""
        return self.document.name

    @property
    def version(self) -> str:
        """Changes when the policy does."""
        return self.document.version

    @property
    def rules(self) -> Rules:
        """What the planner may do."""
        return self.shaping.rules

    @property
    def slot_distance(self) -> int | None:
        """How far two images may lie apart of which one stands for the other, in bits; None where none may."""
        match = getattr(self.document, "match", None)
        return match.max_distance if isinstance(match, Match) and match.reencoded_images == "slot" else None

    @property
    def reuse(self) -> Reuse | None:
        """What it allows of approximate KV of images; None for exact KV alone."""
        part = getattr(self.document, "reuse", None)
        return part.allowed() if isinstance(part, ReusePart) and part.allowed().approximate else None

    def shape(self, view: View) -> Shaped:
        """As `Policy.shape`."""
        return self.shaping.shape(view)

    def written(self) -> dict[str, Any]:
        """For another process: what `read_policy` makes the same policy of."""
        return self.document.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Requests that get a policy of their own.

    `model` is a glob (`qwen*`), `tenant` a tenant's name; None for any. `policy` is a preset's name or a file's path.
    `share` is the part of these requests' conversations that get it, above 0 up to 1; None for all.
    """

    policy: str
    model: str | None = None
    tenant: str | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """A share of conversations: those whose number in `group`, from 0 to 1, is from `low` up to `high`."""

    group: str
    low: float
    high: float
    policy: LoadedPolicy


@dataclass(frozen=True, slots=True)
class Choices:
    """The policies that a request may get. `arms` are shares of the conversations, the first that fits counts; `rest`
    is for all others."""

    rest: LoadedPolicy
    arms: tuple[Arm, ...] = ()

    def of(self, tenant: str, conversation: str, before: str | None) -> LoadedPolicy:
        """The policy of a conversation: the same for its life.

        Args:
            tenant, conversation: which it is.
            before: the policy that its turn before was under: where it is one of these, it stays, also where shares
                have changed since.
        """
        known = {policy.name: policy for policy in (self.rest, *(arm.policy for arm in self.arms))}
        if before is not None and before in known:
            return known[before]
        for arm in self.arms:
            # A group's shares are of what earlier groups have left, so that each has numbers of its own.
            named = f"stillframe-share\0{arm.group}\0{tenant}\0{conversation}".encode("utf-8", "surrogatepass")
            if arm.low <= int.from_bytes(blake3(named).digest(8), "big") / 2**64 < arm.high:
                return arm.policy
        return self.rest


def is_policy_path(name: str) -> bool:
    """Whether a policy is named by its file and not as a preset."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def unknown_policy(name: str) -> str:
    """What to say of a name that is neither a preset nor a file's."""
    return f"there is no policy {name[:64]!r}; take one of {', '.join(PRESETS)}, or the path of a .yaml file"


def load_policy(name_or_path: str) -> LoadedPolicy:
    """A preset by its name, or a policy from a YAML file.

    Raises:
        ConfigError: there is no such preset; the file cannot be read.
        PolicyFileError: all that is wrong with the file.
    """
    if name_or_path in PRESETS:
        return _loaded(_preset(name_or_path))
    if not is_policy_path(name_or_path):
        raise ConfigError("policy", "", unknown_policy(name_or_path))
    document = read_document(_text_of(name_or_path), name_or_path)
    if document.name in PRESETS and document != _preset(document.name):
        reason = f"{document.name!r} is a preset's name, and this differs from the preset; choose another name"
        raise PolicyFileError(name_or_path, [Fault(1, "name", reason)])
    return _loaded(document)


def read_policy(written: Mapping[str, Any]) -> LoadedPolicy:
    """A policy that another process has written."""
    return _loaded(DOCUMENTS.validate_python(tuples(dict(written))))


class Policies:
    """The policies of one gateway."""

    def __init__(
        self,
        default: LoadedPolicy,
        rules: Sequence[tuple[PolicyRule, LoadedPolicy]] = (),
        by_header: Mapping[str, LoadedPolicy] | None = None,
    ) -> None:
        self.default = default
        self._rules = [
            (_pattern(rule.model), rule.tenant, f"{rule.model or ''}\0{rule.tenant or ''}", span, policy)
            for (rule, policy), span in zip(rules, share_spans([rule for rule, _ in rules]), strict=True)
        ]
        self._by_header = dict(by_header or {})
        # Without the paths that they may have been loaded from.
        self.rule_names = tuple(policy.name for _, policy in rules)
        self.header_names = tuple(self._by_header)
        every = (default, *(policy for _, policy in rules), *self._by_header.values())
        # Those that want approximate KV of images.
        self.reusing = tuple(dict.fromkeys(policy.name for policy in every if policy.reuse is not None))
        # And by layer.
        self.profiled = tuple(dict.fromkeys(policy.name for policy in every if policy.reuse and policy.reuse.profile))

    @classmethod
    def load(cls, default: str, rules: Sequence[PolicyRule] = (), headers: Sequence[str] = ()) -> Policies:
        """Load every policy that is named.

        Args:
            default: for requests that nothing else is said of.
            rules: the first that fits counts.
            headers: policies that a client may choose by header.

        Raises:
            ConfigError: one cannot be loaded, or two that differ have the same name.
        """
        loaded: dict[str, LoadedPolicy] = {}
        named: dict[str, tuple[str, LoadedPolicy]] = {}
        for source in dict.fromkeys((default, *(rule.policy for rule in rules), *headers)):
            policy = loaded[source] = load_policy(source)
            other, first = named.setdefault(policy.name, (source, policy))
            if first.document != policy.document:
                raise ConfigError(source, "name", f"{other} has this name, too; give each policy a name of its own")
        by_header = {loaded[source].name: loaded[source] for source in headers}
        return cls(loaded[default], [(rule, loaded[rule.policy]) for rule in rules], by_header)

    def of_tenant(self, tenant: str | None) -> list[LoadedPolicy]:
        """What a tenant's requests may be under, each once, the default first; of all tenants for None."""
        rules = [policy for _, owner, _, _, policy in self._rules if tenant is None or owner in (None, tenant)]
        return list({one.name: one for one in (self.default, *rules, *self._by_header.values())}.values())

    def choose(self, *, model: str | None, tenant: str, header: str | None) -> Choices:
        """The policy of a request: what its header asks for, else that of the first rule that fits, else the default.
        Of rules with a share which one fits is known with the conversation.

        Args:
            model: as the request names it.
            tenant: whose it is.
            header: the value of `x-stillframe-policy`.

        Raises:
            RequestError: the header names none that clients may choose.
        """
        if header is not None:
            if (chosen := self._by_header.get(header.strip())) is not None:
                return Choices(chosen)
            known = ", ".join(self._by_header)
            remedy = f"Send one of {known}, or leave it out." if known else "Leave it out."
            raise RequestError(
                f"{POLICY_HEADER} names no policy that a request may choose. {remedy}",
                code="unknown_policy",
                param=POLICY_HEADER,
            )
        arms: list[Arm] = []
        for pattern, owner, group, span, policy in self._rules:
            if (owner is None or owner == tenant) and (pattern is None or _fits(pattern, model)):
                if span is None:
                    return Choices(policy, tuple(arms))
                arms.append(Arm(group, *span, policy))
        return Choices(self.default, tuple(arms))


def share_spans(rules: Sequence[PolicyRule]) -> list[tuple[float, float] | None]:
    """Which part of 0 to 1 each rule's share is: those of the same model and tenant stand side by side. None for a rule
    without a share.

    Raises:
        ConfigError: the shares for a model and tenant come to more than 1.
    """
    ends: dict[tuple[str | None, str | None], float] = {}
    spans: list[tuple[float, float] | None] = []
    for rule in rules:
        if rule.share is None:
            spans.append(None)
            continue
        low = ends.get((rule.model, rule.tenant), 0.0)
        high = ends[rule.model, rule.tenant] = low + rule.share
        if high > 1 + _ROUNDING:
            reason = f"the shares of one model and tenant come to {high:g}; make them 1 at most"
            raise ConfigError("settings", "policy_rules", reason)
        spans.append((low, high))
    return spans


def _loaded(document: AnyDocument) -> LoadedPolicy:
    return LoadedPolicy(document, document.policy(), document.quotas.quotas())


@lru_cache(maxsize=len(PRESETS))
def _preset(name: str) -> AnyDocument:
    file = resources.files("configs").joinpath("policies", f"{name}.yaml")
    return read_document(file.read_text(encoding="utf-8"), f"{name}.yaml")


def _text_of(path: str) -> str:
    try:
        return read_text(path, MAX_BYTES)
    except UnusableFile as error:
        raise ConfigError(path, "", str(error)) from error


def _pattern(glob: str | None) -> re.Pattern[str] | None:
    return None if glob is None else re.compile(fnmatch.translate(glob))


def _fits(pattern: re.Pattern[str], model: str | None) -> bool:
    return model is not None and len(model) <= _MOST_MODEL_CHARACTERS and pattern.match(model) is not None
