"""Takes the pictures of the documentation from the real demo: `python -m tests.browser.pictures`.

Law of this file: nothing is staged. The demo runs for some minutes with one flood after another; the
pictures are taken in the middle of the last one, by Chromium, and written to docs/pictures.
"""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from typing import Any, Literal

import httpx
from playwright.async_api import Browser, Page, async_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from examples.chat_ui.app import create_app
from examples.chat_ui.engine import CHAT_KEY, CROWD_KEYS, MODEL, gated_engine
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.serving import serving
from tidegate.top import render

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
FLOODS = 2
BETWEEN_FLOODS_S = 20.0
INTO_THE_LAST_S = 4.0
MAX_QUESTIONS = 12
QUESTIONS = {
    "en-GB": ("How does a tide gate work?", "And who opens it at night?"),
    "zh-CN": ("潮汐闸门是怎么工作的？", "晚上由谁来打开它？"),
}


async def open_page(
    browser: Browser, size: str, theme: Literal["light", "dark"], locale: str, url: str
) -> Page:
    """A fresh person with a window of that size and theme."""
    width, height = SIZES[size]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        locale=locale,
        device_scale_factor=1.5,
    )
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_selector("html[data-ready]")
    return page


async def ask(page: Page, question: str) -> None:
    """Writes and sends."""
    await page.fill("#draft", question)
    await page.press("#draft", "Enter")


async def chats(browser: Browser, url: str) -> dict[str, Page]:
    """One chat for each size and theme, with one answer in it; a Chinese one among them."""
    pages = {}
    for size in SIZES:
        for theme in THEMES:
            locale = "zh-CN" if (size, theme) == ("phone", "dark") else "en-GB"
            page = await open_page(browser, size, theme, locale, url)
            if (size, theme) == ("desktop", "light"):
                await page.screenshot(path=PICTURES / "chat-welcome.png")
            await ask(page, QUESTIONS[locale][0])
            await page.wait_for_selector(".answer:not([aria-busy])", timeout=60_000)
            pages[f"{size}-{theme}"] = page
    return pages


async def shoot(browser: Browser, chat_url: str, gate_url: str) -> None:
    """The floods, and the pictures."""
    opener = await open_page(browser, "desktop", "light", "en-GB", chat_url)
    pages = await chats(browser, chat_url)
    for _ in range(FLOODS - 1):
        await opener.click("#flood")
        await opener.wait_for_selector("#flood:disabled")
        await opener.wait_for_selector("#flood:enabled", timeout=240_000)
        await asyncio.sleep(BETWEEN_FLOODS_S)
    await opener.click("#flood")
    await asyncio.sleep(INTO_THE_LAST_S)
    await asyncio.gather(shoot_chats(pages), shoot_operators(browser, gate_url))
    async with httpx.AsyncClient() as client:
        shoot_terminal((await client.get(f"{gate_url}/tidegate/state.json")).json())


async def refused(page: Page, question: str) -> None:
    """Asks until the flood is met."""
    for _ in range(MAX_QUESTIONS):
        await ask(page, question)
        await page.wait_for_selector("#send:visible", timeout=60_000)
        if await page.is_disabled("#send"):
            return
    raise SystemExit("the flood never filled the gate: no picture of a refusal can be taken")


async def shoot_chats(pages: dict[str, Page]) -> None:
    """Every size and theme, in the middle of a countdown."""
    for name, page in pages.items():
        await refused(page, QUESTIONS["zh-CN" if name == "phone-dark" else "en-GB"][1])
        await asyncio.sleep(1.2)
        await page.screenshot(path=PICTURES / f"chat-{name}.png")


async def shoot_operators(browser: Browser, gate_url: str) -> None:
    """Every size and theme, each a second or two after the last."""
    for size in SIZES:
        for theme in THEMES:
            page = await open_page(browser, size, theme, "en-GB", f"{gate_url}/tidegate/")
            await asyncio.sleep(1.5)
            await page.screenshot(path=PICTURES / f"operator-{size}-{theme}.png", full_page=size == "phone")


def shoot_terminal(state: dict[str, Any]) -> None:
    """`tidegate top` as a vector picture, with the reader's own monospace font."""
    console = Console(record=True, width=104, file=io.StringIO())
    console.print(render(state))
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    console.save_svg(str(PICTURES / "top.svg"), title="tidegate top", code_format=without_fonts)


async def main() -> None:
    """Runs the demo and the browser."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    async with serving(gated_engine()) as gate_url:
        console = f"{gate_url}/tidegate/"
        app = create_app(gate_url, model=MODEL, key=CHAT_KEY, crowd_keys=CROWD_KEYS, console_url=console)
        async with serving(app) as chat_url, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            await shoot(browser, chat_url, gate_url)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
