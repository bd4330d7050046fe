"""The dashboard in a real browser, during a live session: as somebody sees, reads and uses it."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from engine.base import ImagePoolState
from engine.fake import FakeConfig
from tests.api.pool_rig import PoolEngine
from tests.api.rig import WatchedEngine, serving
from tests.e2e.dashboard_chats import Agent

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="Playwright is not installed"),
    # Its event loop is not this process's affair.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
READ = "a-read-token-of-tests"
Theme = Literal["light", "dark"]


@asynccontextmanager
async def looking(theme: Theme = "light", width: int = 1280) -> AsyncGenerator[Page]:
    """A page of a browser. What its console complains of fails the test."""
    from playwright.async_api import async_playwright

    complaints: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        page = await context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
        yield page
        await browser.close()
    assert complaints == []


async def faults(page: Page) -> list[str]:
    """What axe-core calls serious or critical."""
    if importlib.util.find_spec("axe_playwright_python") is None:
        pytest.skip("axe-core is not installed")
    # By the debugger's way in, for the page's own policy refuses foreign scripts.
    await page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found: Any = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


async def opened(page: Page, url: str, view: str = "overview") -> None:
    """Go to a view, and wait until it is there. By a locator: a handle would keep what it is of alive in the page."""
    await page.goto(f"{url}/dashboard/#/{view}")
    # A view that stood there before has arrived, too.
    name = view.partition("?")[0]
    tab = {"conversation": "conversations", "image": "images"}.get(name, name)
    await page.locator(f"#views a[aria-current][data-view='{tab}']").wait_for()
    await page.locator(".arrived").wait_for()


async def test_figures_change_without_a_reload(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port), looking() as page:
        url = f"http://{host}:{port}"
        agent = Agent(url)
        await opened(page, url)
        await page.get_by_text("No turns yet.").wait_for()
        await page.evaluate("window.sameDocument = true")
        await agent.step()
        prompts = (
            page.get_by_role("list", name="Figures of this time").get_by_role("listitem").filter(has_text="Prompts")
        )
        await prompts.filter(has_text=re.compile(r"Prompts1\D")).wait_for()
        await agent.step()
        await agent.step(edit="Something else, from the beginning.")
        await prompts.filter(has_text=re.compile(r"Prompts3\D")).wait_for()
        await page.get_by_role("cell", name="client", exact=True).first.wait_for()
        assert await page.evaluate("window.sameDocument") is True


async def test_a_conversation_and_an_image_are_opened(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port), looking() as page:
        url = f"http://{host}:{port}"
        agent = Agent(url)
        await agent.step()
        await agent.step()
        await agent.step(edit="Something else, from the beginning.")
        await opened(page, url, "conversations")
        await page.get_by_role("link", name=re.compile(agent.conversation[:8])).click()
        await page.get_by_role("heading", name=re.compile(agent.conversation)).wait_for()
        turns = page.get_by_role("region", name="Turns")
        assert (
            await turns.get_by_role("img", name=re.compile(r"[\d,]+ read, [\d,]+ write, [\d,]+ uncached")).count() == 3
        )
        await turns.get_by_text("client edit").wait_for()
        assert await turns.locator(".break").count() == 1
        await turns.get_by_role("button", name="Turn 2").press("Enter")
        await turns.get_by_text("Expected read").wait_for()
        await turns.get_by_role("link", name=re.compile("^Image ")).first.click()
        await page.get_by_role("heading", name=re.compile("^Image ")).wait_for()
        await page.get_by_text("KV resident now").wait_for()
        shown = page.get_by_role("img", name=re.compile("^The image"))
        assert await shown.evaluate("async one => { await one.decode(); return one.naturalWidth }") == 160


async def test_the_keyboard_reads_a_chart(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port), looking() as page:
        await Agent(f"http://{host}:{port}").step()
        await opened(page, f"http://{host}:{port}")
        chart = page.get_by_role("slider", name=re.compile("^Prompt tokens, evictions"))
        await page.get_by_text("By turn of the conversation").wait_for()
        await chart.focus()
        assert re.search(r"read [\d,]+, write [\d,]+", await chart.get_attribute("aria-valuetext") or "")
        before = await chart.get_attribute("aria-valuenow")
        await chart.press("ArrowLeft")
        assert await chart.get_attribute("aria-valuenow") != before
        await page.get_by_text("Values as a table").first.click()
        await page.get_by_role("region", name="Over time").get_by_role("row").nth(1).wait_for()


async def test_names_from_traffic_are_text_and_never_code(tmp_path: Path) -> None:
    model = "<img src=x onerror=alert(1)>"
    engine = WatchedEngine(FakeConfig(model=model))
    async with serving(tmp_path, engine) as (_, host, port), looking() as page:
        url = f"http://{host}:{port}"
        agent = Agent(url, model)
        await agent.step()
        await opened(page, url, "conversations")
        await page.get_by_role("link", name=re.compile(agent.conversation[:8])).click()
        await page.locator("dd").filter(has_text=model).wait_for()
        assert await page.locator("img[src=x]").count() == 0


async def test_recorded_turns_are_replayed_from_the_page(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port), looking() as page:
        url = f"http://{host}:{port}"
        agent = Agent(url)
        await agent.step()
        await agent.step()
        await opened(page, url, "policy")
        await page.get_by_role("button", name="Replay recorded turns").click()
        table = page.get_by_role("region", name="Policies over the same turns, by estimate")
        await table.wait_for(timeout=60_000)
        assert await table.get_by_role("row").count() >= 7
        await table.get_by_text("in force", exact=True).wait_for()


async def test_a_token_signs_in_and_out(tmp_path: Path) -> None:
    environment = {"DASHBOARD__READ_TOKEN": READ, "DASHBOARD__ALLOW_LOOPBACK": "false"}
    async with serving(tmp_path, environment=environment) as (_, host, port), looking() as page:
        await page.goto(f"http://{host}:{port}/dashboard")
        await page.get_by_label("Token").fill("a-wrong-token")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("alert").filter(has_text="not known").wait_for()
        assert await faults(page) == []
        await page.get_by_label("Token").fill(READ)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_text("No turns yet.").wait_for()
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("heading", name="Sign in").wait_for()


async def test_it_says_so_when_the_gateway_is_gone(tmp_path: Path) -> None:
    async with looking() as page:
        async with serving(tmp_path) as (_, host, port):
            await opened(page, f"http://{host}:{port}")
        await page.get_by_role("status").filter(has_text="The gateway does not answer.").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_view_has_a_serious_fault_of_accessibility(tmp_path: Path, theme: Theme) -> None:
    async with serving(tmp_path) as (rig, host, port), looking(theme) as page:
        url = f"http://{host}:{port}"
        agent = Agent(url)
        await agent.step()
        await agent.step()
        await agent.step(edit="Something else, from the beginning.")
        await rig.idle()
        await opened(page, url, "images")
        first = page.locator(".tile").first
        await first.wait_for()
        views = {"overview": "By turn of", "conversations": "Last turn", "images": "sent", "policy": "In force"}
        views |= {(await first.get_attribute("href") or "").removeprefix("#/"): "KV resident now"}
        views |= {f"conversation?tenant=default&id={agent.conversation}": "Readable now"}
        found: dict[str, list[str]] = {}
        for view, words in views.items():
            await page.goto("about:blank")
            await opened(page, url, view)
            await page.get_by_text(words).first.wait_for()
            await page.wait_for_timeout(250)
            found[view.partition("?")[0]] = await faults(page)
        assert {view: some for view, some in found.items() if some} == {}


async def test_what_was_loaded_and_the_pool_are_shown_where_there_is_one(tmp_path: Path) -> None:
    engine = PoolEngine(FakeConfig(block_tokens=64), loads=20)
    async with serving(tmp_path, engine, {"REUSE_HEADER": "true"}) as (_, host, port), looking("dark") as page:
        url = f"http://{host}:{port}"
        await Agent(url).step()
        await opened(page, url)
        keys = page.get_by_role("region", name="Over time").get_by_role("listitem")
        assert await keys.all_inner_texts() == ["read", "write", "uncached"]
        await opened(page, url, "images")
        pool = page.get_by_role("region", name="Pool of images' KV").first
        assert not await pool.is_visible()
        agent = Agent(url, messages=[{"role": "system", "content": "Another desktop. " * 60}])
        await agent.step(reuse="0.05")
        engine.tell()
        state = ImagePoolState(memory_entries=3, memory_bytes=2 * 1024**3, memory_hits=41, misses=1, held_entries=2)
        engine.say(replace(state, file_entries=4, file_bytes=3 * 1024**4 // 2))
        await pool.get_by_text("1 miss: images").wait_for()
        cells = pool.get_by_role("row").nth(1).get_by_role("cell")
        assert await cells.all_inner_texts() == ["3", "2.0 GiB", "", "41", "0", "0"]
        assert await pool.get_by_role("row").nth(2).get_by_role("cell").nth(1).inner_text() == "1.5 TiB"
        assert await faults(page) == []
        await opened(page, url)
        await keys.filter(has_text="loaded").wait_for()
        assert await keys.all_inner_texts() == ["read", "loaded", "write", "uncached"]
        await opened(page, url, f"conversation?tenant=default&id={agent.conversation}")
        turns = page.get_by_role("region", name="Turns")
        await turns.get_by_role("img", name=re.compile(r"[\d,]+ read, [\d,]+ loaded, [\d,]+ write")).wait_for()
        await turns.get_by_role("button", name="Turn 1").click()
        await turns.get_by_text("ratio 0.05, by the client").wait_for()
        assert await faults(page) == []


@pytest.mark.parametrize("view", ["overview", "conversations", "images", "policy"])
async def test_a_phone_need_not_scroll_sideways(tmp_path: Path, view: str) -> None:
    async with serving(tmp_path) as (_, host, port), looking(width=390) as page:
        await Agent(f"http://{host}:{port}").step()
        await opened(page, f"http://{host}:{port}", view)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
