"""Chromium for the browser tests: one process for all of them, a fresh context for each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.browser.serving import serving
from tests.browser.stub import Stub

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Headless Chromium."""
    if not Path(CHROMIUM).exists():
        pytest.skip("Chromium is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory() as home:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=CHROMIUM, headless=True, args=FLAGS, env={"HOME": home}
            )
            yield browser
            await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A person with an empty browser that reads English."""
    context = await browser.new_context(locale="en-GB", viewport={"width": 1280, "height": 800})
    context.set_default_timeout(10_000)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> Page:
    """One tab."""
    return await context.new_page()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stub_url(stub_server: Stub) -> AsyncIterator[str]:
    """Where the scripted backend listens."""
    async with serving(stub_server.app) as url:
        yield url


@pytest.fixture(scope="session")
def stub_server() -> Stub:
    """The scripted backend of the session; tests use `stub`, which is clean."""
    return Stub()


@pytest.fixture
def stub(stub_server: Stub) -> Stub:
    """The scripted backend with an empty script and no memory."""
    stub_server.script.clear()
    stub_server.asked.clear()
    stub_server.closed_early = 0
    return stub_server
