"""The whole chain for real: browser, backend on the SDK, gate, engine simulator, and a flood in between."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, expect

from examples.chat_ui.app import create_app
from examples.chat_ui.engine import CHAT_KEY, CROWD_KEYS, ENGINE, MODEL, gated_engine
from tests.browser.serving import serving, until
from tests.browser.test_chat_countdown import WATCH_SEND
from tidegate.testing import EngineApp
from tidegate_client import RetryPolicy

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

QUEUE_LONG = 35
"""Of the 24 + 16 places for the two classes that the flood fills."""
IN_LINE = re.compile(r"You are number \d+ in line")
IMPATIENT = RetryPolicy(max_attempts=1, on_give_up="raise")
"""The backend waits for nothing itself, so that every refusal reaches the page."""


@dataclass(frozen=True)
class Chain:
    """The running parts."""

    chat_url: str
    gate_url: str
    engine: EngineApp

    async def state(self) -> dict[str, Any]:
        """What the operator's page is told."""
        async with httpx.AsyncClient(timeout=60) as client:
            state: dict[str, Any] = (await client.get(f"{self.gate_url}/tidegate/state.json")).json()
            return state


@asynccontextmanager
async def running_chain(step_s: float) -> AsyncIterator[Chain]:
    """Gate and backend on real sockets; a smaller `step_s` is a faster engine."""
    gate = gated_engine(replace(ENGINE, step_s=step_s))
    assert isinstance(gate.app, EngineApp)
    async with serving(gate) as gate_url:
        console = f"{gate_url}/tidegate/"
        app = create_app(
            gate_url, model=MODEL, key=CHAT_KEY, crowd_keys=CROWD_KEYS, console_url=console, policy=IMPATIENT
        )
        async with serving(app) as chat_url:
            yield Chain(chat_url, gate_url, gate.app)


@pytest_asyncio.fixture(loop_scope="session")
async def fast() -> AsyncIterator[Chain]:
    """Waits of some seconds."""
    async with running_chain(0.01) as chain:
        yield chain


@pytest_asyncio.fixture(loop_scope="session")
async def slow() -> AsyncIterator[Chain]:
    """Answers that last."""
    async with running_chain(0.3) as chain:
        yield chain


WATCH_OPERATOR = """() => {
    window.most = {running: 0, level: 0};
    const look = () => {
        const level = document.querySelector(".tank .level");
        most.running = Math.max(most.running, Number(document.getElementById("running").textContent) || 0);
        most.level = Math.max(most.level, Number(level?.textContent) || 0);
    };
    new MutationObserver(look).observe(document.body, {childList: true, characterData: true, subtree: true});
}"""
"""The most that the operator's page has shown: a flood may be over before anybody looks."""


async def ask_until_refused(page: Page, chain: Chain) -> None:
    """Sends messages while the gate's queue is long, until one meets a full one."""
    for number in range(30):
        if await page.is_enabled("#flood"):
            await page.click("#flood")
        for _ in range(100):
            if (await chain.state())["queued"] >= QUEUE_LONG:
                break
            await asyncio.sleep(0.05)
        await expect(page.locator("#send")).to_be_enabled()  # an earlier refusal may have come in a stream
        await page.fill("#draft", f"Is there room? {number}")
        async with page.expect_response("**/api/chat") as answer:
            await page.press("#draft", "Enter")
        await expect(page.locator("#send")).to_be_visible()
        if (await answer.value).status == httpx.codes.TOO_MANY_REQUESTS:
            return  # told by the answer: a short wait may be over before the page is looked at
    pytest.fail("the flood never filled the gate")


@pytest.mark.timeout(900)  # a flood is work for minutes where the machine is starved
async def test_flood_countdown_and_operators_page(context: BrowserContext, fast: Chain) -> None:
    """A flood fills the gate; the page counts down, opens once, and the operator sees it all."""
    page, console = await context.new_page(), await context.new_page()
    await console.goto(f"{fast.gate_url}/tidegate/")
    await console.evaluate(WATCH_OPERATOR)
    await page.goto(fast.chat_url)
    await page.wait_for_selector("html[data-ready]")
    await page.click("#flood")
    await expect(page.locator("#tide")).to_contain_text("Flood:")
    await page.evaluate(WATCH_SEND)
    await ask_until_refused(page, fast)
    first = await page.text_content("#clock")
    assert (await page.input_value("#draft")).startswith("Is there room?")
    await expect(console.locator("#refusals")).to_contain_text("full")
    await console.wait_for_function("most.running > 0 && most.level > 0")
    await page.wait_for_function(
        "first => clock.textContent !== first || !send.disabled",
        arg=first,
    )
    await expect(page.locator("#send")).to_be_enabled()
    await expect(page.locator("#notice-title")).to_have_text("You can send now")
    changes = await page.evaluate("changes")
    assert changes == [True, False] * (len(changes) // 2), "each wait closes Send once and opens it once"


async def test_place_in_line_comes_through_the_whole_chain(context: BrowserContext, slow: Chain) -> None:
    """A question that the gate queues shows its place; Stop takes it back and out of the queue."""
    body = {"model": MODEL, "prompt": "word " * 100, "max_tokens": 400, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {CHAT_KEY}"}
    async with httpx.AsyncClient(base_url=slow.gate_url, headers=headers, timeout=60) as crowd:
        others = [asyncio.create_task(crowd.post("/v1/completions", json=body)) for _ in range(24)]
        page = await context.new_page()
        await page.goto(slow.chat_url)
        await page.wait_for_selector("html[data-ready]")
        await page.fill("#draft", "After all of them?")
        await page.press("#draft", "Enter")
        await expect(page.locator("#notice-title")).to_have_text(IN_LINE)
        queued = (await slow.state())["queued"]
        await page.click("#stop")
        await expect(page.locator("#draft")).to_have_value("After all of them?")

        async def is_shorter() -> bool:
            return bool((await slow.state())["queued"] < queued)

        await until(is_shorter)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_closing_the_tab_cancels_the_engines_work(context: BrowserContext, slow: Chain) -> None:
    """A tab that closes in mid-answer frees the engine's KV and the gate's lease."""
    page = await context.new_page()
    await page.goto(slow.chat_url)
    await page.wait_for_selector("html[data-ready]")
    await page.fill("#draft", "Tell me everything")
    await page.press("#draft", "Enter")
    await expect(page.locator(".answer")).to_be_visible()
    assert slow.engine.stats().running == 1
    await page.close()

    async def is_idle() -> bool:
        return not slow.engine.stats().running and not (await slow.state())["running"]

    await until(is_idle)
    assert slow.engine.stats().cancelled_requests == 1
