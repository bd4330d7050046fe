"""The dashboard's page where something goes wrong, over a long time, and by the keyboard alone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.fake import FakeConfig
from tests.api.rig import ADMIN, Rig, WatchedEngine, ask, serving, user
from tests.e2e.dashboard_chats import Agent
from tests.e2e.test_dashboard_browser import READ, looking, opened, pytestmark

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

__all__ = ["pytestmark"]
OVERVIEW = "**/api/overview*"


async def chats(rig: Rig, *names: str) -> None:
    """A chat in each of some conversations."""
    for name in names:
        answer = await rig.chat(ask(user(f"this is {name}")), {"x-stillframe-conversation": name})
        assert answer.status == 200


async def again(page: Page) -> None:
    """Have the page ask now: on a busy machine it leaves long pauses."""
    await page.evaluate("dispatchEvent(new Event('online'))")


async def written(page: Page, rig: Rig, turns: int) -> None:
    """Wait until so many turns are in the records, and have the page ask then."""
    async with asyncio.timeout(30):
        while (await rig.get("/dashboard/api/overview", ADMIN)).json["totals"]["requests"] < turns:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.1)
    await again(page)


def prompts(page: Page, count: int) -> Any:
    """The figure of so many prompts."""
    figures = page.get_by_role("list", name="Figures of this time").get_by_role("listitem")
    return figures.filter(has_text=re.compile(rf"Prompts{count}\D"))


async def test_an_answer_that_makes_no_sense_does_not_end_the_asking(tmp_path: Path) -> None:
    async with serving(tmp_path) as (rig, host, port), looking() as page:
        await opened(page, f"http://{host}:{port}")

        async def nonsense(route: Route) -> None:
            await route.fulfill(json={"totals": None})

        await page.route(OVERVIEW, nonsense)
        await again(page)
        await page.get_by_role("status").filter(has_text="cannot show what the gateway answers").wait_for()
        await page.unroute(OVERVIEW)
        await chats(rig, "one")
        # By itself.
        await prompts(page, 1).wait_for(timeout=60_000)
        await page.locator("#notice").wait_for(state="hidden")


async def test_a_gateway_that_hangs_is_told_of_with_the_time_of_what_is_shown(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port), looking() as page:
        await page.clock.install(time="2030-01-01T10:00:00")
        await opened(page, f"http://{host}:{port}")

        async def hang(_: Route) -> None:
            """No answer, and no end of the connection."""

        await page.route("**/api/*", hang)
        # A question that is on its way is given up for one that hangs: none is answered at a later time.
        await again(page)
        shown = await page.evaluate("new Date().toTimeString().slice(0, 3)")
        await page.clock.pause_at("2030-01-01T11:00:00")
        for _ in range(6):
            await page.clock.run_for(31_000)
        notice = page.get_by_role("status").filter(has_text="The gateway does not answer.")
        await notice.wait_for()
        # Not of the latest time that it was tried.
        assert f"What is shown is of {shown}" in (await notice.text_content() or "")
        await page.unroute("**/api/*")
        await again(page)
        await notice.wait_for(state="hidden")


async def test_a_session_that_was_opened_in_another_tab_is_taken_up(tmp_path: Path) -> None:
    environment = {"DASHBOARD__READ_TOKEN": READ, "DASHBOARD__ALLOW_LOOPBACK": "false"}
    async with serving(tmp_path, environment=environment) as (rig, host, port), looking() as page:
        await page.goto(f"http://{host}:{port}/dashboard")
        await page.get_by_label("Token").wait_for()
        other = await page.context.new_page()
        await other.goto(f"http://{host}:{port}/dashboard")
        await other.get_by_label("Token").fill(READ)
        await other.get_by_role("button", name="Sign in").click()
        await other.get_by_text("No turns yet.").wait_for()
        await page.bring_to_front()
        await again(page)
        await page.get_by_text("No turns yet.").wait_for()
        # And it goes on by itself.
        await chats(rig, "one")
        await prompts(page, 1).wait_for(timeout=60_000)
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("heading", name="Sign in").wait_for()
        assert await page.locator("#about").text_content() == ""


async def test_no_conversation_is_lost_between_the_pages_of_a_list(tmp_path: Path) -> None:
    async with serving(tmp_path) as (rig, host, port), looking() as page:
        await chats(rig, *(f"chat-{number:02}" for number in range(27)))
        await opened(page, f"http://{host}:{port}", "conversations")
        rows = page.get_by_role("region", name="Conversations").get_by_role("rowheader")
        await written(page, rig, 27)
        await page.get_by_role("button", name="Show older ones").click()
        await page.get_by_role("link", name="chat-00").wait_for()
        assert await rows.count() == 27
        await chats(rig, "newer-1", "newer-2", "chat-00")
        await written(page, rig, 30)
        await rows.first.filter(has_text="chat-00").wait_for()
        names = ["chat-00", "newer-2", "newer-1", *(f"chat-{number:02}" for number in range(26, 0, -1))]
        assert [one.strip() for one in await rows.all_text_contents()] == names


async def test_an_address_with_a_time_that_there_is_not_shows_the_usual_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port), looking() as page:
        await opened(page, f"http://{host}:{port}", "overview?range=never&__proto__=x")
        assert await page.get_by_role("radio", name="1 hour").is_checked()


async def test_who_chooses_by_the_keyboard_goes_on_from_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as (rig, host, port), looking(width=390) as page:
        await chats(rig, "one")
        await opened(page, f"http://{host}:{port}")
        await prompts(page, 1).wait_for()
        await page.get_by_role("radio", name="1 hour").focus()
        for name in ("6 hours", "24 hours"):
            await page.keyboard.press("ArrowRight")
            await page.wait_for_function("name => document.activeElement?.parentElement?.innerText === name", arg=name)
        # A table that was pushed aside, and has the focus, stays so when its figures change.
        await page.goto(f"http://{host}:{port}/dashboard/#/conversations")
        region = page.get_by_role("region", name="Conversations, the latest first")
        await region.focus()
        await region.evaluate("one => one.scrollTo(60, 0)")
        await chats(rig, "two")
        await written(page, rig, 2)
        await region.get_by_role("row").nth(2).wait_for()
        assert await region.evaluate("one => [one === document.activeElement, one.scrollLeft]") == [True, 60]
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name=re.compile("^Conversation [^ ]")).wait_for()
        assert await page.evaluate("document.activeElement.id") == "main"


async def test_what_the_engine_does_not_tell_is_no_zero_and_is_said(tmp_path: Path) -> None:
    engine = WatchedEngine(FakeConfig(reports_cache=False))
    async with serving(tmp_path, engine) as (rig, host, port), looking() as page:
        await chats(rig, "one")
        url = f"http://{host}:{port}"
        await opened(page, url)
        await prompts(page, 1).wait_for()
        await page.get_by_role("list", name="What the engine cannot").get_by_text("does not report").wait_for()
        assert await page.locator(".hero .huge").all_text_contents() == ["?", "?"]
        assert await page.locator(".hero dd").all_text_contents() == ["?", "?", "?"]
        await page.goto(f"{url}/dashboard/#/conversations")
        await page.get_by_role("img", name="not reported").wait_for()
        await page.get_by_role("link", name="one").click()
        facts = page.locator(".page-head .facts")
        await facts.filter(has_text=re.compile(r"Not read\?.*Lost\?")).wait_for()


async def test_a_replay_is_heard_of_again_after_a_break(tmp_path: Path) -> None:
    rules = {"POLICY_RULES": "[{share: 0.25, model: 'qwen*', policy: batched}]"}
    async with serving(tmp_path, environment=rules) as (rig, host, port), looking() as page:
        await Agent(f"http://{host}:{port}").step()
        await rig.idle()
        await opened(page, f"http://{host}:{port}", "policy")
        await page.get_by_role("row", name="qwen* any 25% batched").wait_for()

        async def broken(route: Route) -> None:
            await (route.abort() if route.request.method == "GET" else route.continue_())

        await page.route("**/api/whatif", broken, times=2)
        await page.get_by_role("button", name="Replay recorded turns").click()
        await page.get_by_role("region", name="Policies over the same turns, by estimate").wait_for(timeout=60_000)


# What is drawn next, after the page was told to ask: to be waited for before it is told so again, which would drop an
# answer that has come and is not drawn yet.
_DRAWN_NEXT = """() => {
  window.drawn = new Promise((done) => {
    const eye = new MutationObserver(() => { eye.disconnect(); done(); });
    eye.observe(document.querySelector(".arrived"), { subtree: true, childList: true });
  });
  dispatchEvent(new Event("online"));
}"""


async def test_a_long_watch_keeps_no_more_than_it_shows(tmp_path: Path) -> None:
    """What is drawn anew takes the place of what was there: elements and listeners are let go of."""
    async with serving(tmp_path) as (rig, host, port), looking() as page:
        await Agent(f"http://{host}:{port}").step()
        await written(page, rig, 1)
        browser: Any = await page.context.new_cdp_session(page)
        await browser.send("Performance.enable")

        async def anew(route: Route) -> None:
            headers = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
            await route.continue_(headers=headers)

        async def held(view: str, updates: int) -> dict[str, float]:
            for _ in range(updates):
                async with page.expect_response(re.compile(rf"/api/{view}(\?|$)")):
                    await page.evaluate(_DRAWN_NEXT)
                await page.evaluate("window.drawn")
            # Nothing is drawn from here on. A collection that had begun before takes what was replaced meanwhile for
            # alive; the next one does not.
            for _ in range(3):
                await browser.send("HeapProfiler.collectGarbage")
            metrics = (await browser.send("Performance.getMetrics"))["metrics"]
            return {one["name"]: one["value"] for one in metrics if one["name"] in ("Nodes", "JSEventListeners")}

        await page.route("**/api/*", anew)
        await opened(page, f"http://{host}:{port}")
        # It asks when it is told to alone: an update between the collecting and the counting would be counted.
        await page.get_by_role("button", name="Live").click()
        for view in ("overview", "conversations", "images", "policy"):
            await opened(page, f"http://{host}:{port}", view)
            first, last = await held(view, 5), await held(view, 30)
            for name, count in first.items():
                assert last[name] < count + 20, (view, name, first, last)
