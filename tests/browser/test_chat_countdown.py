"""The countdown of the chat page, watched in Chromium: the clock is the browser's, moved by the test.

Law of this file: Send is closed during a request too, so that a wait is known by its figure (`#clock`).
"""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.serving import until
from tests.browser.stub import Reply, Stub, answer, refusal

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

WATCH_SEND = """() => {
    const send = document.getElementById("send");
    window.changes = [];
    const note = () => window.changes.push(send.disabled);
    new MutationObserver(note).observe(send, {attributeFilter: ["disabled"]});
}"""


async def open_chat(page: Page, url: str, draft: str = "How do tides work?") -> None:
    """Opens the page with a clock that stands still, and writes a draft."""
    await page.clock.install(time=1_700_000_000)
    await page.goto(url)
    await page.clock.pause_at(1_700_000_100)
    await page.wait_for_selector("html[data-ready]")
    await page.fill("#draft", draft)
    await page.evaluate(WATCH_SEND)


async def test_refusal_starts_a_countdown_that_keeps_the_draft(page: Page, stub: Stub, stub_url: str) -> None:
    """A 429 disables Send, shows the time and the reason, and leaves the message where it was."""
    stub.script.append(refusal("12"))
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("12 s")
    await expect(page.locator("#send")).to_be_disabled()
    await expect(page.locator("#notice")).to_contain_text("Every place in line is taken.")
    await expect(page.locator("#draft")).to_have_value("How do tides work?")
    await expect(page.locator("#transcript li")).to_have_count(0)
    await page.clock.run_for(3_100)
    await expect(page.locator("#clock")).to_have_text("9 s")
    await expect(page.locator("#send")).to_have_text("Send in 9 s")


async def test_send_is_enabled_exactly_once_at_zero(page: Page, stub: Stub, stub_url: str) -> None:
    """Send goes off once, comes back once, and nothing is sent by itself."""
    stub.script.extend([refusal("3"), answer()])
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("3 s")
    await page.clock.run_for(2_900)
    await expect(page.locator("#send")).to_be_disabled()
    await page.clock.run_for(5_000)
    await expect(page.locator("#send")).to_be_enabled()
    await expect(page.locator("#notice-title")).to_have_text("You can send now")
    assert await page.evaluate("changes") == [True, False]
    assert len(stub.asked) == 1
    await page.click("#send")
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")
    await expect(page.locator(".question")).to_have_count(1)
    await expect(page.locator("#draft")).to_have_value("")


async def test_longer_second_refusal_replaces_the_first_and_a_shorter_does_not(
    page: Page, stub: Stub, stub_url: str
) -> None:
    """The deadline only moves later, whoever names it."""
    stub.script.extend([refusal("4"), refusal("30")])
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("4 s")
    await page.clock.run_for(4_100)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("30 s")
    await page.evaluate(
        """() => new Promise((resolve) => {
            const other = new BroadcastChannel("tidegate:chat");
            const post = (waitMs) => other.postMessage({kind: "hold", waitMs, atMs: Date.now(), info: {}});
            post(5_000);
            post(45_000);
            resolve();
        })"""
    )
    await expect(page.locator("#clock")).to_have_text("45 s")


async def test_hidden_tab_and_sleeping_laptop_are_right_at_once(
    page: Page, stub: Stub, stub_url: str
) -> None:
    """Two minutes pass without one timer; the first look at the page finds it open."""
    stub.script.append(refusal("60"))
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("1:00")
    await page.clock.pause_at(1_700_000_220)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator("#send")).to_be_enabled()
    assert await page.evaluate("changes") == [True, False]


async def test_wall_clock_set_back_does_not_lock_the_page(page: Page, stub: Stub, stub_url: str) -> None:
    """An hour taken off the wall clock adds nothing to the wait."""
    stub.script.append(refusal("5"))
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("5 s")
    await page.clock.set_system_time(1_700_000_100 - 3_600)
    await page.clock.run_for(5_100)
    await expect(page.locator("#send")).to_be_enabled()


async def test_automatic_resend_only_when_ticked(page: Page, stub: Stub, stub_url: str) -> None:
    """With the box ticked the kept message goes out once when the wait is over."""
    stub.script.extend([refusal("3"), answer()])
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("3 s")
    await page.check("#auto")
    await page.fill("#draft", "How do tides work, briefly?")
    await page.clock.run_for(6_000)
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")
    assert stub.questions == ["How do tides work?", "How do tides work, briefly?"]


async def test_cancel_means_nothing_is_sent_at_zero(page: Page, stub: Stub, stub_url: str) -> None:
    """Cancel unticks the resend; the draft stays and Send opens at its time."""
    stub.script.append(refusal("3"))
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("3 s")
    await page.check("#auto")
    await page.click("#cancel")
    await expect(page.locator("#notice")).to_be_hidden()
    await expect(page.locator("#send")).to_be_disabled()
    await page.clock.run_for(10_000)
    await expect(page.locator("#send")).to_be_enabled()
    await expect(page.locator("#draft")).to_have_value("How do tides work?")
    assert len(stub.asked) == 1


async def test_announcements_do_not_chatter(page: Page, stub: Stub, stub_url: str) -> None:
    """A wait of ten seconds is spoken twice: when it begins and when it ends."""
    stub.script.append(refusal("10"))
    await open_chat(page, stub_url)
    await page.evaluate(
        """() => {
            const announcer = document.getElementById("announcer");
            window.spoken = [];
            const note = () => window.spoken.push(announcer.textContent);
            new MutationObserver(note).observe(announcer, {childList: true});
        }"""
    )
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("10 s")
    for _ in range(12):
        await page.clock.run_for(1_000)
    await expect(page.locator("#send")).to_be_enabled()
    spoken = await page.evaluate("spoken")
    assert len(spoken) == 2
    assert "10 seconds" in spoken[0]
    assert spoken[1] == "You can send now."


async def test_reload_keeps_the_countdown_and_the_draft(page: Page, stub: Stub, stub_url: str) -> None:
    """A reload is no way round the wait, and loses nothing."""
    stub.script.append(refusal("40"))
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#clock")).to_have_text("40 s")
    await page.reload()
    await page.wait_for_selector("html[data-ready]")
    await expect(page.locator("#clock")).to_have_text(re.compile("^(40|39) s$"))
    await expect(page.locator("#send")).to_be_disabled()
    await expect(page.locator("#draft")).to_have_value("How do tides work?")


async def test_reload_during_a_request_keeps_the_draft_and_frees_send(
    page: Page, stub: Stub, stub_url: str
) -> None:
    """Nobody has said no yet: the question is in the box as before, and may be sent again."""
    unanswered = asyncio.Event()
    stub.script.extend([Reply(hold=unanswered), answer()])
    await open_chat(page, stub_url)
    await page.click("#send")
    await expect(page.locator("#stop")).to_be_visible()
    await until(lambda: len(stub.asked) == 1)
    await page.reload()
    await page.wait_for_selector("html[data-ready]")
    await expect(page.locator("#send")).to_be_enabled()
    await expect(page.locator("#stop")).to_be_hidden()
    await expect(page.locator("#draft")).to_have_value("How do tides work?")
    unanswered.set()
    await page.click("#send")
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")
