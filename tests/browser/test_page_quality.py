"""Both pages as products: weight, contrast, names, small screens, reduced motion, both languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Response, expect

from tests.browser.conftest import PATIENCE_MS
from tests.browser.fake_gate import FakeGate, instance
from tests.browser.serving import serving
from tests.browser.stub import Stub, answer, refusal

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

MAX_WEIGHT_BYTES = 60_000
MAX_FILES = 20
CHECKS = (Path(__file__).parent / "quality.js").read_text(encoding="utf-8")
SIZES = {"desktop": (1280, 800), "phone": (360, 740)}


async def faults(page: Page) -> dict[str, Any]:
    """What the checks found, empty lists left out."""
    found: dict[str, list[str]] = await page.evaluate(CHECKS)
    return {check: words for check, words in found.items() if words}


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
async def test_chat_page_is_readable_in_every_state(
    browser: Browser, stub: Stub, stub_url: str, size: str, theme: Any, language: str
) -> None:
    """Contrast, names, targets and width hold when empty, answered, busy, ready and failed."""
    width, height = SIZES[size]
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, locale=language
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.clock.install(time=1_700_000_000)
    await page.clock.pause_at(1_700_000_100)
    await page.goto(stub_url)
    await page.wait_for_selector("html[data-ready]")
    assert await faults(page) == {}
    stub.script.extend([answer("Words and `code`.\n\n```\n" + "long " * 60 + "\n```"), refusal("20")])
    await page.fill("#draft", "x" * 300)
    await page.press("#draft", "Enter")
    await expect(page.locator(".answer pre")).to_be_visible()
    await expect(page.locator("#send")).to_be_visible()  # the answer has ended, not only begun
    await page.fill("#draft", "again")
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice.wait")).to_be_visible()
    assert await faults(page) == {}
    await page.clock.run_for(21_000)
    await expect(page.locator("#notice.ready")).to_be_visible()
    assert await faults(page) == {}
    await page.route("**/api/chat", lambda route: route.abort())
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice.failure")).to_be_visible()
    assert await faults(page) == {}
    await context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
async def test_operators_page_is_readable(browser: Browser, size: str, theme: Any) -> None:
    """The same checks on the operator's page, calm, full and blind."""
    gate = FakeGate()
    gate.live_through(30)
    width, height = SIZES[size]
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = await context.new_page()
    async with serving(gate.app, lifespan="off") as url:
        await page.goto(f"{url}/tidegate/")
        await page.wait_for_selector("html[data-ready]")
        assert await faults(page) == {}
        gate.mode = "shadow"
        rows = (instance(level=0.97), instance("b", level=0.9), instance("c", level=None, state="blind"))
        gate.tick(is_open=False, instances=rows)
        await expect(page.locator(".tank")).to_have_count(3)
        assert await faults(page) == {}
        gate.console.close()
        await context.close()


async def test_the_checks_bite(page: Page, stub: Stub, stub_url: str) -> None:
    """Faint words, a nameless button, a tiny one, a doubled id and a wide box are each found."""
    await page.goto(stub_url)
    await page.wait_for_selector("html[data-ready]")
    await page.evaluate(
        """() => {
            const plant = (name, properties, style = {}) => {
                const made = Object.assign(document.createElement(name), properties);
                Object.assign(made.style, style);
                document.body.append(made);
            };
            plant("p", {textContent: "faint"}, {color: "#888", background: "#999"});
            plant("button", {textContent: ""});
            plant("button", {id: "draft", textContent: "x"}, {all: "unset"});
            plant("img", {src: "icon.svg"});
            plant("div", {textContent: "wide"}, {width: "3000px"});
        }"""
    )
    found = await faults(page)
    assert set(found) == {"faint", "nameless", "small", "doubled", "pictures", "overflow"}
    assert found["faint"][0].startswith("faint: 1.")


async def weigh(page: Page, url: str) -> tuple[int, int]:
    """Files and bytes that came over the wire until the page was ready: bodies only, pictures left out."""
    responses: list[Response] = []

    def note(response: Response) -> None:
        if response.request.resource_type in ("document", "script", "stylesheet"):
            responses.append(response)

    page.on("response", note)
    await page.goto(url)
    await page.wait_for_selector("html[data-ready]")
    assert len(responses) >= 4
    sizes = [(await response.request.sizes())["responseBodySize"] for response in responses]
    return len(sizes), sum(sizes)


async def test_chat_page_is_light(page: Page, stub: Stub, stub_url: str) -> None:
    """Few files, and under 60 KB over the wire."""
    files, size_bytes = await weigh(page, stub_url)
    assert files <= MAX_FILES
    assert size_bytes < MAX_WEIGHT_BYTES


async def test_operators_page_is_light(page: Page) -> None:
    """The same, as it stands, without compression."""
    gate = FakeGate()
    async with serving(gate.app, lifespan="off") as url:
        files, size_bytes = await weigh(page, f"{url}/tidegate/")
        assert files <= MAX_FILES
        assert size_bytes < MAX_WEIGHT_BYTES
        gate.console.close()


async def test_reduced_motion_stops_every_animation(browser: Browser, stub: Stub, stub_url: str) -> None:
    """Who asks for calm gets it on both pages."""
    context = await browser.new_context(reduced_motion="reduce")
    page = await context.new_page()
    gate = FakeGate()
    async with serving(gate.app, lifespan="off") as url:
        for address in (stub_url, f"{url}/tidegate/"):
            await page.goto(address)
            await page.wait_for_selector("html[data-ready]")
            assert await page.evaluate("document.getAnimations().length") == 0
        gate.console.close()
        await context.close()


async def test_both_languages_say_the_same_things(page: Page, stub: Stub, stub_url: str) -> None:
    """Neither table has a key that the other lacks, and none of the Chinese is left in English."""
    await page.goto(stub_url)
    english, chinese = await page.evaluate(
        """async () => {
            const { TABLES } = await import("/text.js");
            const keys = (table) => Object.entries(table).flatMap(([key, value]) =>
                value.constructor === Object ? keys(value).map((inner) => `${key}.${inner}`) : [key]);
            return [keys(TABLES.en), keys(TABLES.zh)];
        }"""
    )
    assert english == chinese


async def test_theme_button_overrules_the_system(page: Page, stub: Stub, stub_url: str) -> None:
    """The choice changes the page at once and is remembered."""
    await page.emulate_media(color_scheme="light")
    await page.goto(stub_url)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.click("#theme")
    dark = await page.evaluate(ground)
    assert dark != light
    await page.reload()
    assert await page.evaluate(ground) == dark
