"""What the page does with servers, proxies and texts that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples.chat_ui.pages import page_routes
from tests.browser.serving import serving
from tests.browser.stub import DONE, Reply, Stub, answer, piece, refusal

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def ask(page: Page, url: str, question: str = "Keep me") -> None:
    """Opens the page and sends one question."""
    await page.goto(url)
    await page.wait_for_selector("html[data-ready]")
    await page.fill("#draft", question)
    await page.press("#draft", "Enter")


BUSY = [
    pytest.param(refusal(None), 2, 19, id="no Retry-After at all: a guess that grows with each refusal"),
    pytest.param(refusal("0"), 2, 19, id="zero is no invitation to hammer"),
    pytest.param(refusal("-3"), 2, 19, id="negative"),
    pytest.param(refusal("soon"), 2, 19, id="not a number"),
    pytest.param(refusal("9999999999"), 60, 60, id="three centuries: a minute, called a guess"),
    pytest.param(refusal("90"), 90, 90, id="minutes are believed"),
    pytest.param(refusal(None, RateLimit='"kv";r=0;t=33'), 33, 33, id="RateLimit alone"),
    pytest.param(refusal("77", retry_after_ms="21000"), 21, 21, id="milliseconds go first"),
    pytest.param(
        Reply(
            429, {"Content-Type": "application/json"}, '{"error": {"retry_after": 44, "reason": "asleep"}}'
        ),
        44,
        44,
        id="only the body says when",
    ),
    pytest.param(Reply(503, {"Retry-After": "31"}, "down"), 31, 31, id="503 with a time"),
]


@pytest.mark.parametrize(("reply", "least_s", "most_s"), BUSY)
async def test_every_kind_of_refusal_becomes_a_believable_wait(
    page: Page, stub: Stub, stub_url: str, reply: Reply, least_s: int, most_s: int
) -> None:
    """Send is closed for a time a person can believe, and the draft is kept."""
    stub.script.append(reply)
    await page.clock.install(time=1_700_000_000)
    await page.clock.pause_at(1_700_000_100)  # the wait stands still, however slow the page is
    await ask(page, stub_url)
    await expect(page.locator("#notice.wait")).to_be_visible()
    await expect(page.locator("#send")).to_be_disabled()
    minutes, _, rest = (await page.inner_text("#clock")).removesuffix(" s").rpartition(":")
    assert least_s <= int(minutes or 0) * 60 + int(rest) <= most_s
    await expect(page.locator("#draft")).to_have_value("Keep me")


FAILURES = [
    pytest.param(
        Reply(502, {"Content-Type": "text/html"}, "<h1>502 Bad Gateway</h1><script>window.hacked=1</script>"),
        "error page (502)",
        id="HTML from a proxy",
    ),
    pytest.param(Reply(503, {}, "nobody home"), "cannot take this message (503)", id="503 with no time"),
    pytest.param(
        Reply(429, {"Content-Type": "application/json"}, '{"error": {"code": "insufficient_quota"}}'),
        "The quota is used up",
        id="a quota that waiting does not fill",
    ),
    pytest.param(
        Reply(400, {"Content-Type": "application/json"}, '{"error": {"message": "<b>too</b> long"}}'),
        "<b>too</b> long",
        id="a permanent refusal, its message escaped",
    ),
    pytest.param(Reply(500, {}, ""), "(500)", id="an empty 500"),
    pytest.param(
        Reply(chunks=('event: error\ndata: {"error": {"message": "worker died"}}\n\n',)),
        "worker died",
        id="an error event before any answer",
    ),
    pytest.param(Reply(200, {"Content-Type": "text/event-stream"}, ""), "broke off", id="an empty answer"),
]


@pytest.mark.parametrize(("reply", "words"), FAILURES)
async def test_failures_are_explained_and_the_draft_is_kept(
    page: Page, stub: Stub, stub_url: str, reply: Reply, words: str
) -> None:
    """No countdown that means nothing: a sentence, the draft, and a button to try again."""
    stub.script.extend([reply, answer()])
    await ask(page, stub_url)
    await expect(page.locator("#notice.failure")).to_contain_text(words)
    await expect(page.locator("#draft")).to_have_value("Keep me")
    assert await page.evaluate("window.hacked") is None
    await page.click("#again")
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")


async def test_refusal_inside_a_started_stream_counts_down(page: Page, stub: Stub, stub_url: str) -> None:
    """An error event that names a wait is a refusal like any other."""
    event = 'event: error\ndata: {"error": {"code": "RATE_LIMIT_EXCEEDED", "retry_after": 41}}\n\n'
    stub.script.append(Reply(chunks=(": queued position=2\n\n", event)))
    await ask(page, stub_url)
    await expect(page.locator("#notice.wait")).to_be_visible()
    await expect(page.locator("#send")).to_be_disabled()
    await expect(page.locator("#draft")).to_have_value("Keep me")


async def test_server_restarted_in_mid_stream(page: Page, stub: Stub, stub_url: str) -> None:
    """What was said stays, the break is named, and asking again is the person's choice."""
    killed = asyncio.Event()
    stub.script.extend([Reply(chunks=(piece("Half an ans"), killed), is_cut=True), answer("A whole one.")])
    await ask(page, stub_url)
    await expect(page.locator(".answer")).to_contain_text("Half an ans")
    killed.set()
    await expect(page.locator(".remark")).to_contain_text("The answer broke off")
    await expect(page.locator(".answer")).to_contain_text("Half an ans")
    await expect(page.locator("#send")).to_be_enabled()
    assert len(stub.asked) == 1
    await page.get_by_role("button", name="Ask again").click()
    await expect(page.locator(".answer").nth(1)).to_contain_text("A whole one.")
    assert stub.questions == ["Keep me", "Keep me"]


async def test_network_down(page: Page, stub: Stub, stub_url: str) -> None:
    """Offline is said as such; once back, one click sends the kept message."""
    await page.goto(stub_url)
    await page.wait_for_selector("html[data-ready]")
    await page.fill("#draft", "Keep me")
    await page.context.set_offline(True)
    await page.wait_for_function("!navigator.onLine")
    await page.press("#draft", "Enter")
    await expect(page.locator("#notice-title")).to_have_text("You are offline")
    await page.context.set_offline(False)
    await page.wait_for_function("navigator.onLine")
    await page.click("#again")
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")


async def test_server_gone(page: Page, stub: Stub, stub_url: str) -> None:
    """A refused connection is not called offline."""
    await page.route("**/api/chat", lambda route: route.abort("connectionrefused"))
    await ask(page, stub_url)
    await expect(page.locator("#notice-title")).to_have_text("The server does not answer")
    await expect(page.locator("#draft")).to_have_value("Keep me")


def _busy_elsewhere(middleware: list[Middleware]) -> Starlette:
    async def chat(_request: Request) -> Response:
        return Response("busy", 429, {"Retry-After": "27", "retry-after-ms": "27000"})

    return Starlette(routes=[Route("/api/chat", chat, methods=["POST", "HEAD"])], middleware=middleware)


EXPOSING = Middleware(
    CORSMiddleware,
    allow_origins=["*"],
    allow_methods=["POST"],
    allow_headers=["*"],
    expose_headers=["Retry-After", "retry-after-ms"],
)


async def _no_cors_on_refusals(scope: object, receive: object, send: Callable[..., object]) -> None:
    """Answers the preflight as a CORS layer behind a limiter does, and refuses without its headers."""
    method = scope["method"]  # type: ignore[index]
    allow = [(b"access-control-allow-origin", b"*"), (b"access-control-allow-headers", b"*")]
    start = {"type": "http.response.start", "status": 429, "headers": [(b"retry-after", b"27")]}
    if method == "OPTIONS":
        start |= {"status": 200, "headers": allow}
    await send(start)  # type: ignore[misc]
    await send({"type": "http.response.body"})  # type: ignore[misc]


async def test_refusal_hidden_by_cors_is_explained(page: Page) -> None:
    """The browser hides the 429; the page finds out that somebody answered and says what to change."""
    async with serving(_no_cors_on_refusals) as elsewhere:
        site = Starlette(routes=page_routes(f"{elsewhere}/api/chat"))
        async with serving(site) as url:
            # Its second look, which tells a hidden answer from none, is not cut short on a slow machine.
            await page.add_init_script("AbortSignal.timeout = () => new AbortController().signal")
            await ask(page, url)
            await expect(page.locator("#notice")).to_contain_text("this page may not read it")
            await expect(page.locator("#notice")).to_contain_text("CORS")
            await expect(page.locator("#draft")).to_have_value("Keep me")


async def test_refusal_from_another_origin_with_cors_counts_down(page: Page) -> None:
    """With the headers exposed the countdown works across origins."""
    async with serving(_busy_elsewhere([EXPOSING])) as elsewhere:
        site = Starlette(routes=page_routes(f"{elsewhere}/api/chat"))
        async with serving(site) as url:
            await ask(page, url)
            await expect(page.locator("#notice.wait")).to_be_visible()
            await expect(page.locator("#send")).to_be_disabled()


INJECTION = (
    "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>\n\n"
    "```html\n<svg onload=window.hacked=1>\n```\n[x](javascript:window.hacked=1) `<b>`"
)


async def test_script_in_model_output_stays_text(page: Page, stub: Stub, stub_url: str) -> None:
    """Markup of the model, whole or cut between chunks, is shown as written and never runs."""
    half = len(INJECTION) // 2
    stub.script.append(Reply(chunks=(piece(INJECTION[:half]), piece(INJECTION[half:]), DONE)))
    await ask(page, stub_url, "<script>window.hacked=1</script>")
    await expect(page.locator(".answer")).to_contain_text("<img src=x onerror=window.hacked=1>")
    await expect(page.locator(".question")).to_contain_text("<script>window.hacked=1</script>")
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("#transcript :is(img, script, svg, a, b)").count() == 0


async def test_events_cut_at_every_byte_are_read_whole(page: Page, stub: Stub, stub_url: str) -> None:
    """Chunk borders inside a character or a line change nothing."""
    await page.goto(stub_url)
    text = await page.evaluate(
        """async () => {
            const { readEvents } = await import("/tidegate/tidegate.js");
            const text = ": hi\\r\\n\\r\\nevent: wait\\ndata: 潮\\ndata: 汐\\n\\ndata: x\\r\\r";
            const bytes = new TextEncoder().encode(text);
            const stream = new ReadableStream({start(sink) {
                for (const byte of bytes) sink.enqueue(new Uint8Array([byte]));
                sink.close();
            }});
            const found = [];
            for await (const event of readEvents(new Response(stream))) found.push(event);
            return found;
        }"""
    )
    assert text == [
        {"event": "message", "data": "", "comment": "hi"},
        {"event": "wait", "data": "潮\n汐", "comment": ""},
        {"event": "message", "data": "x", "comment": ""},
    ]


async def test_slow_server_shows_that_it_waits(page: Page, stub: Stub, stub_url: str) -> None:
    """Before the first byte the page says what it waits for, and Stop is at hand."""
    held = asyncio.Event()
    reply = answer()
    reply.hold = held
    stub.script.append(reply)
    await ask(page, stub_url)
    await expect(page.locator("#notice-title")).to_have_text("Waiting for the server")
    await expect(page.locator("#stop")).to_be_visible()
    held.set()
    await expect(page.locator(".answer")).to_contain_text("Hello from the engine.")
