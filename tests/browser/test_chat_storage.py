"""The chat page in a browser that keeps nothing."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.stub import Stub, answer, refusal

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

FORBIDDEN = """
for (const name of ["sessionStorage", "localStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
}
"""
FULL = 'Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };'


@pytest.mark.parametrize("script", [FORBIDDEN, FULL], ids=["forbidden", "full"])
async def test_a_page_that_may_keep_nothing_works(page: Page, stub: Stub, stub_url: str, script: str) -> None:
    """Cookies blocked, or no room left: questions are refused, waited for and answered, in both languages."""
    stub.script += [refusal("1"), answer("There you are.")]
    await page.add_init_script(script)
    await page.clock.install(time=1_700_000_000)
    await page.clock.pause_at(1_700_000_100)
    await page.goto(stub_url)
    await page.wait_for_selector("html[data-ready]")
    await page.click("#language")
    await page.fill("#draft", "Anyone?")
    await page.press("#draft", "Enter")
    await expect(page.locator("#clock")).to_have_text(re.compile("^1 "))
    await expect(page.locator("#send")).to_be_disabled()
    await page.clock.run_for(1_100)
    await expect(page.locator("#send")).to_be_enabled()
    await page.press("#draft", "Enter")

    await expect(page.get_by_text("There you are.")).to_be_visible()
