"""What the message box sends, and how often: keyboards, input methods, impatient fingers."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.serving import until
from tests.browser.stub import DONE, Reply, Stub, answer, piece, refusal

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def open_chat(page: Page, url: str, draft: str = "") -> None:
    """Opens the page and writes a draft."""
    await page.goto(url)
    await page.wait_for_selector("html[data-ready]")
    await page.fill("#draft", draft)


@pytest.mark.parametrize("init", ["isComposing: true, keyCode: 13", "isComposing: false, keyCode: 229"])
async def test_enter_that_confirms_ime_text_does_not_send(
    page: Page, stub: Stub, stub_url: str, init: str
) -> None:
    """Both ways browsers mark such an Enter are understood; a plain Enter afterwards sends."""
    await open_chat(page, stub_url, "潮汐是什么")
    await page.evaluate(
        f"""document.getElementById("draft").dispatchEvent(
            new KeyboardEvent("keydown", {{key: "Enter", bubbles: true, cancelable: true, {init}}}))"""
    )
    await expect(page.locator("#draft")).to_have_value("潮汐是什么")
    assert stub.asked == []
    await page.press("#draft", "Enter")
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")
    assert stub.questions == ["潮汐是什么"]


async def test_double_click_and_enter_in_one_tick_send_once(page: Page, stub: Stub, stub_url: str) -> None:
    """Enter, Enter and two clicks before the first answer are one question."""
    await open_chat(page, stub_url, "Once?")
    await page.evaluate(
        """() => {
            const draft = document.getElementById("draft");
            const enter = {key: "Enter", bubbles: true, cancelable: true};
            draft.dispatchEvent(new KeyboardEvent("keydown", enter));
            draft.dispatchEvent(new KeyboardEvent("keydown", enter));
            document.getElementById("send").click();
            document.getElementById("send").click();
        }"""
    )
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")
    assert stub.questions == ["Once?"]
    await expect(page.locator(".question")).to_have_count(1)


async def test_shift_enter_starts_a_line(page: Page, stub: Stub, stub_url: str) -> None:
    """Shift + Enter belongs to the text."""
    await open_chat(page, stub_url, "one")
    await page.focus("#draft")
    await page.keyboard.press("End")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("two")
    await expect(page.locator("#draft")).to_have_value("one\ntwo")
    assert stub.asked == []


async def test_keyboard_alone_reaches_everything_in_a_wait(page: Page, stub: Stub, stub_url: str) -> None:
    """After a refusal the focus is in the box; Tab order leads to the resend box and Cancel."""
    stub.script.append(refusal("50"))
    await open_chat(page, stub_url, "hello")
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice.wait")).to_be_visible()
    await expect(page.locator("#draft")).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await expect(page.locator("#cancel")).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await expect(page.locator("#auto")).to_be_focused()
    await page.keyboard.press("Space")
    await expect(page.locator("#auto")).to_be_checked()


async def test_place_in_line_and_backend_waits_are_shown(page: Page, stub: Stub, stub_url: str) -> None:
    """Keep-alive comments and wait events tell where the question stands; the answer replaces them."""
    first, second = asyncio.Event(), asyncio.Event()
    wait = 'event: wait\ndata: {"reason": "queue_full", "wait_s": 2.4, "attempt": 1}\n\n'
    place = ": queued position=3 wait_s=5\n\n"
    stub.script.append(Reply(chunks=(wait, first, place, second, piece("Here."), DONE)))
    await open_chat(page, stub_url, "hello")
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice")).to_contain_text("about 3 s to go")
    first.set()
    await expect(page.locator("#notice-title")).to_have_text("You are number 3 in line")
    await expect(page.locator("#notice-detail")).to_have_text("about 5 s to go")
    await expect(page.locator("#draft")).to_have_value("hello")
    second.set()
    await expect(page.locator(".answer")).to_contain_text("Here.")
    await expect(page.locator("#notice")).to_be_hidden()


async def test_stop_ends_the_request_and_keeps_what_was_said(page: Page, stub: Stub, stub_url: str) -> None:
    """Stop in mid-answer keeps the words so far and closes the connection; nothing is sent again."""
    never = asyncio.Event()
    stub.script.append(Reply(chunks=(piece("The beginning"), never)))
    await open_chat(page, stub_url, "hello")
    await page.press("#draft", "Enter")
    await expect(page.locator(".answer")).to_contain_text("The beginning")
    await page.click("#stop")
    await expect(page.locator(".remark")).to_contain_text("Stopped")
    await expect(page.locator("#send")).to_be_enabled()
    await until(lambda: stub.closed_early == 1)
    assert len(stub.asked) == 1


async def test_stop_before_the_answer_leaves_the_draft(page: Page, stub: Stub, stub_url: str) -> None:
    """Stopping a question nobody has answered yet takes it back whole."""
    never = asyncio.Event()
    stub.script.append(Reply(chunks=(": queued position=9\n\n", never)))
    await open_chat(page, stub_url, "hello")
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice-title")).to_have_text("You are number 9 in line")
    await page.click("#stop")
    await expect(page.locator("#draft")).to_have_value("hello")
    await expect(page.locator("#notice")).to_be_hidden()
    await expect(page.locator("#transcript li")).to_have_count(0)


async def test_chinese_and_back(page: Page, stub: Stub, stub_url: str) -> None:
    """The language changes at once, a running wait included."""
    stub.script.append(refusal("50"))
    await open_chat(page, stub_url, "你好")
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice-title")).to_have_text("The server is busy")
    await page.click("#language")
    await expect(page.locator("#notice-title")).to_have_text("服务器繁忙")
    assert await page.evaluate("document.documentElement.lang") == "zh-CN"
    await page.click("#language")
    await expect(page.locator("#notice-title")).to_have_text("The server is busy")


async def test_several_tabs_agree(context: BrowserContext, stub: Stub, stub_url: str) -> None:
    """A refusal in one tab closes Send in an open one and in one opened later; each opens at zero."""
    await context.clock.install(time=1_700_000_000)
    await context.clock.pause_at(1_700_000_100)  # of all tabs: however slow they are, the wait stands still
    early, other, late = [await context.new_page() for _ in range(3)]
    await open_chat(early, stub_url, "first")
    await open_chat(other, stub_url, "second")
    stub.script.append(refusal("3"))
    await early.press("#draft", "Enter")
    await expect(early.locator("#clock")).to_have_text("3 s")
    await expect(other.locator("#clock")).to_have_text("3 s")
    await expect(other.locator("#notice")).to_contain_text("Another tab was told to wait.")
    await expect(other.locator("#auto-label")).to_be_visible()
    await open_chat(late, stub_url, "third")
    await expect(late.locator("#clock")).to_have_text("3 s")
    for tab in (early, other, late):
        await expect(tab.locator("#send")).to_be_disabled()
    await context.clock.run_for(3_100)
    for tab in (early, other, late):
        await expect(tab.locator("#send")).to_be_enabled()
    assert stub.questions == ["first"]


async def test_second_turn_carries_the_first(page: Page, stub: Stub, stub_url: str) -> None:
    """The conversation so far goes with each question, refused ones excepted."""
    stub.script.extend([answer("One."), refusal(None, retry_after_ms="300"), answer("Two.")])
    await open_chat(page, stub_url, "a")
    await page.press("#draft", "Enter")
    await expect(page.locator(".answer")).to_contain_text("One.")
    await expect(page.locator("#send")).to_be_visible()  # the answer has ended, not only begun
    await page.fill("#draft", "b")
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice-title")).to_have_text("You can send now")
    await page.press("#draft", "Enter")
    await expect(page.locator(".answer").nth(1)).to_contain_text("Two.")
    assert [message["content"] for message in stub.asked[-1]["messages"]] == ["a", "One.", "b"]
