"""Chromium for the browser tests: one process for all of them, a fresh context for each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.browser.serving import PATIENCE_S, serving
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
PATIENCE_MS = 1_000 * PATIENCE_S
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Headless Chromium."""
    if not Path(CHROMIUM).exists():
        pytest.skip("Chromium is missing: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with tempfile.TemporaryDirectory() as home:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=CHROMIUM,
                headless=True,
                args=FLAGS,
                env={"HOME": home},
                timeout=2 * PATIENCE_MS,
            )
            yield browser
            await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A person with an empty browser that reads English."""
    context = await browser.new_context(locale="en-GB", viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> Page:
    """One tab."""
    return await context.new_page()


@pytest.fixture
def stub() -> Stub:
    """A scripted backend of the test's own: what an earlier test still had under way never reaches it."""
    return Stub()


@pytest_asyncio.fixture(loop_scope="session")
async def stub_url(stub: Stub) -> AsyncIterator[str]:
    """Where it listens."""
    async with serving(stub.app) as url:
        yield url
