"""A policy file: what may stand in it, and the `Policy` that it makes. `context/policies/reading.py` reads it.

Every key has a description, from which `configs/policies/schema.json` and `stillframe policy check` speak.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from context.errors import ConfigError
from context.layout.control import FAMILIES, control_tokens
from context.layout.hoist import ToolImages
from context.layout.names import ID_CHARS, MIN_NAME_CHARS
from context.layout.patterns import Patterns, compile_patterns
from context.policies.base import Policy, Rules, VolatileText
from context.policies.batched import Batched, BreakEven, Measure
from context.policies.keep import KeepAll
from context.policies.quotas import Quotas
from context.policies.reference import Reference
from context.policies.sliding import Sliding
from context.policies.summary import INSTRUCTION, Summary, SummaryUnit
from context.reuse import Reuse

PRESETS = ("observe", "stable", "sliding", "batched", "reference", "summary")
MAX_PATTERNS = 16


MISFIT = "misfit"


def misfit(key: str, reason: str) -> PydanticCustomError:
    """An error of a rule about several keys, at the one that is to be changed."""
    return PydanticCustomError(MISFIT, "{reason}", {"key": key, "reason": reason})


class Part(BaseModel):
    """What every part of a policy file refuses: unknown keys, values of another type, and numbers that are none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class OwnPatternPart(Part):
    name: str = Field(description="a word of a-z and _ for what it finds")
    regex: str = Field(description="a regular expression with bounded repetitions; its first group is the value")

    @model_validator(mode="after")
    def _usable(self) -> OwnPatternPart:
        try:
            compile_patterns({self.name: self.regex}, where="")
        except ConfigError as error:
            raise misfit("name" if "kind" in error.reason else "regex", error.reason) from None
        return self


class ReportLayout(Part):
    patterns: tuple[OwnPatternPart, ...] = Field(
        default=(),
        max_length=MAX_PATTERNS,
        description="own patterns of text that changes with each request: name, regex",
    )

    @model_validator(mode="after")
    def _distinct(self) -> ReportLayout:
        names = [one.name for one in self.patterns]
        if len(set(names)) < len(names):
            raise ValueError("two patterns have the same name; give each one of its own")
        return self

    def compiled(self) -> Patterns:
        """The built-in patterns and these."""
        return Patterns(own=compile_patterns({one.name: one.regex for one in self.patterns}, where="", key="patterns"))


class Layout(ReportLayout):
    canonical_tools: bool = Field(default=True, description="send tools in one order and spelling")
    neutralize: Literal["off", "qwen_vl", "llava", "llava_onevision", "smolvlm"] = Field(
        default="qwen_vl", description="whose control tokens, typed in text, are broken up; off: nobody's"
    )
    volatile: VolatileText = Field(
        default="report",
        description="times and ids in old text: report the change; freeze their first values; or move them to the tail",
    )
    volatile_roles: tuple[Annotated[str, Field(min_length=1, max_length=32)], ...] = Field(
        default=("system", "developer"),
        max_length=8,
        description="of whose messages `tail` takes the values; in others those that were sent stay",
    )
    tool_images: ToolImages = Field(
        default="pass", description="images in tool results: pass, or hoist behind the tool group"
    )


class Match(Part):
    reencoded_images: Literal["off", "slot"] = Field(
        default="off", description="slot: a photo that was encoded anew counts as the one that was sent in its place"
    )
    max_distance: int = Field(
        default=8,
        ge=0,
        le=64,
        description="how far two images may lie apart for that, in bits of a 64-bit perceptual hash",
    )


class ReusePart(Part):
    mode: Literal["position_independent"] = Field(
        description="position_independent: an image's KV wherever the image stands, as another context computed it"
    )
    ratio: float = Field(
        ge=0, le=1, description="the share of each image's tokens that is computed all the same; 1: all, exactly"
    )
    profile: bool = Field(
        default=False, description="the ratio is a mean: each layer's own is of engine.vllm.image_kv.profile"
    )

    def allowed(self) -> Reuse:
        """As it goes with a request."""
        return Reuse(self.ratio, self.profile)


class QuotaPart(Part):
    max_images: int | None = Field(default=None, ge=0, description="images of one request, repeats included")
    max_unique_images: int | None = Field(default=None, ge=0, description="different images of one request")
    max_new_images: int | None = Field(default=None, ge=0, description="images that the turn before did not send")
    max_visual_tokens: int | None = Field(default=None, ge=0, description="prompt tokens of all images, by estimate")

    def quotas(self) -> Quotas:
        """As they are applied."""
        return Quotas(**self.model_dump())


class Document(Part):
    """What every kind of policy has."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,63}$",
        description="what headers and records call it: a-z, 0-9, _ and -; a preset's name is taken",
    )
    version: str = Field(
        pattern=r"^[!-~]{1,64}$", description="a word that changes when the policy does; write numbers in quotes"
    )
    description: str = Field(default="", max_length=1000, description="for people")
    quotas: QuotaPart = Field(
        default=QuotaPart(), description="bounds of one request; beyond one it is refused with 400"
    )


class BreakEvenPart(Part):
    expected_turns: float = Field(gt=0, description="how many turns a conversation is expected to have")
    read_price: float = Field(ge=0, description="of a prompt token that is read from the cache, in any currency")
    write_price: float = Field(ge=0, description="of one that is not, in the same currency")

    @model_validator(mode="after")
    def _a_miss_costs_more(self) -> BreakEvenPart:
        if self.write_price < self.read_price:
            raise misfit("write_price", "must be at least read_price: a token that is not read costs no less")
        return self


def _above_low(low: int) -> str:
    return f"must be above low, which is {low}; raise it, or lower low"


class SlidingPart(Part):
    keep_images: int = Field(default=3, ge=0, description="so many images stay, the last ones")
    marker: bool = Field(default=False, description="leave the marker of each deleted image in its place")


class BatchedPart(Part):
    unit: Measure = Field(
        default="images", description="what the waters measure: images, visual_tokens, turns, prompt_tokens"
    )
    high: int = Field(default=20, ge=1, description="above it a batch is evicted")
    low: int = Field(default=3, ge=0, description="so much is left by a batch; less than high")
    defer_client_deletions: bool = Field(
        default=True, description="go on sending what the client has cut until the next batch"
    )
    pin_first_images: int = Field(default=0, ge=0, description="so many images are never evicted, the first ones")
    break_even: BreakEvenPart | None = Field(
        default=None, description="prices; with them a batch goes earlier, as soon as it pays"
    )

    @model_validator(mode="after")
    def _in_order(self) -> BatchedPart:
        if self.high <= self.low:
            raise misfit("high", _above_low(self.low))
        return self


class ReferencePart(Part):
    id_chars: int = Field(default=16, ge=MIN_NAME_CHARS, le=ID_CHARS, description="digits of an image's id in its name")
    keep_turns: int = Field(default=0, ge=0, description="how many turns before this one show their images, too")
    recall: bool = Field(default=True, description="show an image again that is named in the last message or reply")


class SummaryPart(Part):
    unit: SummaryUnit = Field(
        default="prompt_tokens", description="what the waters measure: prompt_tokens, turns, images"
    )
    high: int = Field(default=16_000, ge=1, description="above it the oldest turns are summed up")
    low: int = Field(default=6_000, ge=0, description="so much is left; less than high")
    max_tokens: int = Field(default=400, ge=16, le=8_192, description="how long a summary may be")
    instruction: str = Field(
        default=INSTRUCTION, min_length=1, max_length=4_000, description="what the engine is told to do"
    )

    @model_validator(mode="after")
    def _in_order(self) -> SummaryPart:
        if self.high <= self.low:
            raise misfit("high", _above_low(self.low))
        if self.unit == "prompt_tokens" and self.low <= self.max_tokens:
            raise misfit("low", f"must be above max_tokens, which is {self.max_tokens}: the summary counts, too")
        return self


class ObserveDocument(Document):
    kind: Literal["observe"] = Field(description="observe: send what came, and only report")
    layout: ReportLayout = Field(default=ReportLayout(), description="what is reported as volatile text")

    def policy(self) -> Policy:
        """Sends what comes."""
        rules = Rules(replay=False, canonical_tools=False, control_tokens=None, patterns=self.layout.compiled())
        return KeepAll(self.name, self.version, rules)


class ShapingDocument(Document):
    """What every kind but `observe` has: the planner's liberties."""

    layout: Layout = Field(default=Layout(), description="how messages are laid out when they are first sent")
    match: Match = Field(default=Match(), description="whether images may stand for others")
    reuse: ReusePart | None = Field(
        default=None, description="approximate KV of images, where the engine keeps it; null: exact KV alone"
    )

    def rules(self) -> Rules:
        """What the planner may do."""
        family, layout = self.layout.neutralize, self.layout
        return Rules(
            canonical_tools=layout.canonical_tools,
            control_tokens=None if family == "off" else control_tokens(FAMILIES[family]),
            patterns=layout.compiled(),
            volatile=layout.volatile,
            volatile_roles=frozenset(layout.volatile_roles),
            tool_images=layout.tool_images,
        )


class StableDocument(ShapingDocument):
    kind: Literal["stable"] = Field(description="stable: replay what was sent, heal, evict nothing")

    def policy(self) -> Policy:
        """Keeps everything."""
        return KeepAll(self.name, self.version, self.rules())


class SlidingDocument(ShapingDocument):
    kind: Literal["sliding"] = Field(description="sliding: keep the last images, delete the others each turn")
    sliding: SlidingPart = Field(default=SlidingPart(), description="what stays")

    def policy(self) -> Policy:
        """Keeps the last images."""
        return Sliding(**self.sliding.model_dump(), name=self.name, version=self.version, rules=self.rules())


class BatchedDocument(ShapingDocument):
    kind: Literal["batched"] = Field(description="batched: evict in batches, from a high water to a low one")
    batched: BatchedPart = Field(default=BatchedPart(), description="when a batch goes, and what stays")

    def policy(self) -> Policy:
        """Evicts in batches."""
        given, prices = self.batched.model_dump(exclude={"break_even"}), self.batched.break_even
        even = None if prices is None else BreakEven(**prices.model_dump())
        return Batched(**given, break_even=even, name=self.name, version=self.version, rules=self.rules())


class ReferenceDocument(ShapingDocument):
    kind: Literal["reference"] = Field(description="reference: names in the history, images at the tail")
    reference: ReferencePart = Field(default=ReferencePart(), description="which images are shown")

    def policy(self) -> Policy:
        """Names in the history, images at the tail."""
        return Reference(**self.reference.model_dump(), name=self.name, version=self.version, rules=self.rules())


class SummaryDocument(ShapingDocument):
    kind: Literal["summary"] = Field(description="summary: the engine sums up the oldest turns at a boundary")
    summary: SummaryPart = Field(default=SummaryPart(), description="when, and how long")

    def policy(self) -> Policy:
        """Sums up the oldest turns."""
        return Summary(**self.summary.model_dump(), name=self.name, version=self.version, rules=self.rules())


AnyDocument: TypeAlias = Annotated[
    ObserveDocument | StableDocument | SlidingDocument | BatchedDocument | ReferenceDocument | SummaryDocument,
    Field(discriminator="kind"),
]
DOCUMENTS: TypeAdapter[AnyDocument] = TypeAdapter(AnyDocument)
KINDS: dict[str, type[AnyDocument]] = {
    "observe": ObserveDocument,
    "stable": StableDocument,
    "sliding": SlidingDocument,
    "batched": BatchedDocument,
    "reference": ReferenceDocument,
    "summary": SummaryDocument,
}


def policy_schema() -> dict[str, Any]:
    """The JSON schema of policy files, for editors."""
    schema = DOCUMENTS.json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A Stillframe context policy", **schema}
