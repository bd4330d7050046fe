"""T2 to T5: chats of people about pictures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from metrics.replay.material import Draft, Form, Part, Picture, Shown, words
from metrics.replay.options import Options
from metrics.replay.session import Step, build
from metrics.replay.trace import Trace

T2_DEFAULTS = {"time": "off"}
T3_DEFAULTS: dict[str, str] = {}
T4_DEFAULTS = {"animated": "off"}
T5_DEFAULTS = {"variant": "a", "long": "off"}
# How the client writes the document's image, by turn: the same file, spelled anew.
_SPELLINGS = {3: "url", 6: "lines", 7: "bare", 9: "input_image"}
# By turn: which product, and how it is written.
_PRODUCTS: dict[int, tuple[int, Form, str]] = {
    1: (1, "jpeg", "object"),
    2: (2, "png", "object"),
    3: (3, "png", "object"),
    4: (1, "jpeg", "bare"),
    5: (4, "png", "object"),
    7: (1, "jpeg_note", "object"),
    9: (1, "lossy_webp", "object"),
    10: (1, "jpeg", "lines"),
    11: (5, "jpeg", "object"),
}
_T4_FORMS: Sequence[Form] = ("alpha", "palette", "gray16", "cmyk", "gif")


def t2(options: Options) -> Trace:
    """One document, then ten questions. Needs no server: where the client would send a URL it sends data."""
    seed, chance = options.seed, random.Random(f"{options.seed}-t2")  # noqa: S311
    head = [Draft("system", (words(options.tokens(600), seed, "system"),))]
    width, height = options.size(3508, 2480)
    page = Shown(Picture(f"{seed}-t2-page", width, height), "jpeg_o6")
    steps = [Step((_said(options, 30, 1, page),), _answer(options, chance.randrange(150, 401), 1))]
    for number in range(2, 12):
        asked = _said(options, chance.randrange(15, 61), number)
        steps.append(Step((asked,), _answer(options, chance.randrange(150, 401), number)))
    is_timed = options.switch("time")

    def view(number: int, whole: Sequence[Draft]) -> list[Draft]:
        shown = [_respelled(draft, _SPELLINGS.get(number, "object")) for draft in whole]
        if is_timed:
            clock = f"Today is 2026-11-05 12:{number:02}.\n"
            shown[0] = replace(shown[0], content=(clock + str(shown[0].content[0]),))
        return shown

    return build("t2", head, steps, view)


def t3(options: Options) -> Trace:
    """Four products, nine pictures: the same one spelled and packed anew, one written with loss, one changed."""
    seed, chance = options.seed, random.Random(f"{options.seed}-t3")  # noqa: S311
    width, height = options.size(640, 640)
    steps: list[Step] = []
    for number in range(1, 13):
        pictures: list[Part] = []
        if number in _PRODUCTS:
            product, form, spelling = _PRODUCTS[number]
            shown = Shown(Picture(f"{seed}-t3-{product}", width, height), form)
            pictures.append(_spelled(shown, spelling))
        asked = _said(options, chance.randrange(20, 81), number, *pictures)
        steps.append(Step((asked,), _answer(options, chance.randrange(80, 201), number)))
    return build("t3", [Draft("system", (words(options.tokens(300), seed, "system"),))], steps)


def t4(options: Options) -> Trace:
    """Images compared: the client reorders them, puts one into an old message, takes one out, and adds a fifth."""
    seed = options.seed
    width, height = options.size(512, 384)
    forms = [*_T4_FORMS[:4], "animation" if options.switch("animated") else "gif"]
    a, b, c, d, e = (
        Shown(Picture(f"{seed}-t4-{at}", width, height), form)  # pyright: ignore[reportArgumentType]
        for at, form in enumerate(forms)
    )
    first = Draft("user", ("A:", a, "B:", b, words(options.tokens(30), seed, "compare")))
    news: list[Draft] = [
        first,
        _said(options, 30, 2, a),
        _said(options, 30, 3),
        _said(options, 30, 4),
        _said(options, 30, 5, d),
        _said(options, 30, 6, e),
    ]
    steps = [Step((draft,), _answer(options, 60, number)) for number, draft in enumerate(news, start=1)]

    def view(number: int, whole: Sequence[Draft]) -> list[Draft]:
        shown = list(whole)
        at = next(index for index, draft in enumerate(shown) if draft.step == 1)
        if number >= 3:
            shown[at] = replace(shown[at], content=("A:", b, "B:", a, first.content[4]))
        if number >= 4:
            shown[at] = replace(shown[at], content=("A:", b, "B:", a, "C:", c, first.content[4]))
        if number >= 5:
            # What was the newest image of the history.
            shown = [
                replace(draft, content=draft.content[:1]) if draft.step == 2 and draft.role == "user" else draft
                for draft in shown
            ]
        return shown

    return build(
        "t4", [Draft("system", (words(options.tokens(200), seed, "system"),))], steps, view, limits={"max_images": 4}
    )


def t5(options: Options) -> Trace:
    """A phone's chat: all photos are written anew for every request."""
    seed, chance = options.seed, random.Random(f"{options.seed}-t5")  # noqa: S311
    variant, is_long = options.choice("variant", "a", "b", "c"), options.switch("long")
    width, height = options.size(*((2016, 1512) if variant == "c" else (1008, 756)))
    steps: list[Step] = []
    for number in range(1, 23 if is_long else 16):
        has_photo = number in (1, 3, 6) or (is_long and number > 6)
        photos: list[Part] = []
        if has_photo:
            picture = Picture(f"{seed}-t5-{number}", width, height, noisy=variant == "c")
            photos = [Shown(picture, "jpeg" if variant == "b" else "jpeg_note")]
        asked = _said(options, chance.randrange(15, 61), number, *photos)
        steps.append(Step((asked,), _answer(options, chance.randrange(60, 181), number)))

    def view(number: int, whole: Sequence[Draft]) -> list[Draft]:
        form: Form = "jpeg_note" if variant != "b" else "jpeg" if number % 2 else "jpeg_79"
        return [
            replace(draft, content=tuple(_rewritten(part, form, f"request {number}") for part in draft.content))
            for draft in whole
        ]

    return build("t5", [Draft("system", (words(options.tokens(400), seed, "system"),))], steps, view)


def _rewritten(part: Part, form: Form, note: str) -> Part:
    return replace(part, form=form, note=note) if isinstance(part, Shown) else part


def _spelled(shown: Shown, spelling: str) -> Shown:
    return replace(shown, spelling=spelling)


def _respelled(draft: Draft, spelling: str) -> Draft:
    return replace(
        draft, content=tuple(_spelled(part, spelling) if isinstance(part, Shown) else part for part in draft.content)
    )


def _said(options: Options, tokens: int, number: int, *pictures: Part) -> Draft:
    text = words(options.tokens(tokens), options.seed, "asked", number)
    return Draft("user", (*pictures, text) if number == 1 else (text, *pictures))


def _answer(options: Options, tokens: int, number: int) -> Draft:
    return Draft("assistant", (words(options.tokens(tokens), options.seed, "answer", number),))
