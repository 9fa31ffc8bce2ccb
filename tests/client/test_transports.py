"""What a caller gets through the transports: every case on httpx and httpx2, on a thread and on an event
loop.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client import RateLimited, RetryPolicy, Why, call_options
from tidegate_client.testing import Reply, answer, break_off, refuse


@dataclasses.dataclass(frozen=True)
class Case:
    """A script, and what comes of it: the caller's end, the gaps between attempts with every draw at one
    half.
    """

    name: str
    script: tuple[Reply, ...]
    gaps: tuple[float, ...] = ()
    status: int = 200
    why: Why | None = None
    error: str | None = None
    method: str = "POST"
    policy: RetryPolicy | None = None
    then: Reply | None = None


PATIENT = RetryPolicy(retry_statuses=frozenset({500, 502}), retry_read_errors=True)

CASES = [
    Case("an answer is delivered", (answer({"ok": True}),)),
    Case("a plain error is delivered", (answer(status=500),), status=500),
    Case("other client errors are delivered", (answer(status=403, retry_after="1"),), status=403),
    Case("202 with Retry-After is an answer", (answer(status=202, retry_after="1"),), status=202),
    Case("429: its time is a floor, half the range is added", (refuse(3),), (3.5,)),
    Case("503 with a time is a refusal too", (refuse(3, status=503),), (3.5,)),
    Case("503 without a time may have begun work", (answer(status=503),), status=503),
    Case("529 with a time", (refuse(2, status=529),), (2.5,)),
    Case("503 that asks for the retry: back-off", (answer(status=503, x_should_retry="true"),), (0.3,)),
    Case("a time in the body only", (Reply(429, json={"error": {"retry_after": 4}}),), (4.5,)),
    Case("milliseconds", (refuse(3, retry_after_ms="1500"),), (2.0,)),
    Case("the range doubles with each refusal", (refuse(1), refuse(1), refuse(1)), (1.5, 2.0, 3.0)),
    Case("no time: full jitter that doubles", (refuse(), refuse(), refuse()), (0.3, 0.55, 1.05)),
    Case("zero is no time: never a hot loop", (refuse(0), refuse(0)), (0.3, 0.55)),
    Case("a past date is no time", (refuse("Sun, 06 Nov 1994 08:49:37 GMT"),), (0.3,)),
    Case("one request refused alone: a tenth of the wait", (refuse(3, scope="request"),), (3.15,)),
    Case("sixty-one seconds are honoured", (refuse(61),), (61.5,)),
    Case("an hour is over the budget: at once", (refuse(3600),), why=Why.OVER_BUDGET),
    Case("the second wait would be over the budget", (refuse(80), refuse(80)), (80.5,), why=Why.OVER_BUDGET),
    Case("1e300", (refuse("1e300"),), why=Why.OVER_BUDGET),
    Case(
        "a quota that is used up is no blip",
        (refuse(1, code="insufficient_quota"),),
        why=Why.QUOTA,
    ),
    Case("the server forbids a retry", (refuse(1, x_should_retry="false"),), status=429),
    Case(
        "attempts run out",
        (),
        (0.3, 0.55),
        why=Why.ATTEMPTS,
        policy=RetryPolicy(max_attempts=3),
        then=refuse(),
    ),
    Case("no connection: sent again, even a POST", (break_off(), break_off("ConnectTimeout")), (0.3, 0.55)),
    Case("broken while reading: a POST may have been done", (break_off("ReadError"),), error="ReadError"),
    Case("a read time-out is not retried", (break_off("ReadTimeout"),), error="ReadTimeout", method="GET"),
    Case("unless the caller says so", (break_off("ReadError"),), (0.3,), method="GET", policy=PATIENT),
    Case("but never for a POST", (break_off("ReadError"),), error="ReadError", policy=PATIENT),
    Case("a status the caller adds, GET", (answer(status=502),), (0.3,), method="GET", policy=PATIENT),
    Case("a status the caller adds, POST", (answer(status=502),), status=502, policy=PATIENT),
    Case(
        "a POST the caller vouches for",
        (answer(status=502),),
        (0.3,),
        policy=dataclasses.replace(PATIENT, idempotent=True),
    ),
    Case("other transport errors are raised", (break_off("PoolTimeout"),), error="PoolTimeout"),
    Case("the same 429 without a scope and with an HTML body", (Reply(429, content=b"<html>"),), (0.3,)),
    Case(
        "an undecodable body",
        (Reply(429, {"content-encoding": "gzip", "retry-after": "1"}, content=b"?"),),
        (1.5,),
    ),
]


@every_stack
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_call_ends_as_the_table_says(stack: Stack, case: Case) -> None:
    """Delivered, resent after exactly the wait the rule gives, or ended with the typed error."""
    scene = Scene(stack, *case.script, policy=case.policy, then=case.then)
    ended: Any
    try:
        ended = await scene.caller.request(case.method, "http://engine/v1/x", json={"model": "m"})
    except stack.library.HTTPError as error:
        ended = error

    assert scene.gaps == pytest.approx(case.gaps)
    if case.why is not None:
        assert (type(ended).__mro__[1], ended.why) == (RateLimited, case.why)
    elif case.error is not None:
        assert type(ended).__name__ == case.error
    else:
        assert ended.status_code == case.status
    assert scene.board.snapshot(scene.clock.now)[0].waiting == 0


@every_stack
async def test_a_call_that_succeeds_at_once_pays_for_nothing_else(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no turn, asks tenacity nothing and reads no advice; the first refusal needs all of them."""
    scene = Scene(stack, answer(), refuse(1), policy=RetryPolicy(max_attempts=2))
    with monkeypatch.context() as without:
        for name in ("call.Turn", "drivers.tenacity", "drivers.Waiting", "call.advice_from"):
            without.delattr(f"tidegate_client.{name}")
        assert (await scene.post()).status_code == 200
        with pytest.raises(NameError):
            await scene.post()


@every_stack
async def test_a_refusal_over_budget_says_when(stack: Stack) -> None:
    """The error carries the wait, the instant, the reason, the scope, the answer and the attempts; nobody
    waited.
    """
    scene = Scene(stack, refuse(3600, reason="tokens_per_minute", scope="tenant"))

    with pytest.raises(RateLimited) as caught:
        await scene.post()

    error = caught.value
    assert (error.retry_after, error.reason, error.scope, error.attempts) == (
        3600,
        "tokens_per_minute",
        "tenant",
        1,
    )
    assert error.retry_at == dt.datetime.fromtimestamp(scene.clock.wall() + 3600, tz=dt.timezone.utc)
    assert error.response.json()["error"]["reason"] == "tokens_per_minute"
    assert error.request.url.path == "/v1/completions"  # type: ignore[attr-defined]
    assert scene.clock.waits == []
    assert "retry after 3600 s" in str(error)


@every_stack
async def test_the_response_itself_on_request(stack: Stack) -> None:
    """With on_give_up="response" the refusal is delivered, marked as final, its error attached."""
    scene = Scene(stack, refuse(3600), policy=RetryPolicy(on_give_up="response"))

    response = await scene.post()

    assert response.status_code == 429
    assert response.headers["x-should-retry"] == "false"
    assert response.extensions["tidegate"].retry_after == 3600
    assert response.json()["error"]["reason"] == "queue_full"


@every_stack
async def test_attempts_are_numbered_and_keyed(stack: Stack) -> None:
    """Each attempt carries its number and the same quoted key; another call has another key."""
    scene = Scene(stack, refuse(1), refuse(1), answer(), answer())

    await scene.post()
    await scene.post()

    headers = [request.headers for request in scene.server.received]
    assert [each.get("tidegate-attempt") for each in headers] == [None, "2", "3", None]
    keys = [each["idempotency-key"] for each in headers]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert keys[0].startswith('"')
    assert keys[0].endswith('"')
    assert "prefer" not in headers[0]


@every_stack
async def test_a_key_of_the_callers_own_stays(stack: Stack) -> None:
    """A caller's Idempotency-Key is sent as it is, on every attempt."""
    scene = Scene(stack, refuse(1))

    await scene.post(headers={"Idempotency-Key": "mine"})

    assert [request.headers["idempotency-key"] for request in scene.server.received] == ["mine", "mine"]


@every_stack
async def test_a_request_object_sent_twice_is_two_calls(stack: Stack) -> None:
    """Sending one request object again is new work: it gets a new key, and counts from one."""
    scene = Scene(stack, refuse(1))
    request = scene.caller.client.build_request("POST", "http://engine/", json={})
    for _ in range(2):
        sent = scene.caller.client.send(request)
        await sent if stack.is_async else sent

    _, first, second = scene.server.received
    assert first.headers["tidegate-attempt"] == "2"
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert "tidegate-attempt" not in second.headers


@every_stack
async def test_a_get_has_no_key_and_a_silent_client_no_headers(stack: Stack) -> None:
    """Safe methods need no key; announce=False adds nothing at all."""
    scene = Scene(stack)
    await scene.get()
    silent = Scene(stack, policy=RetryPolicy(announce=False, deadline_s=5))
    await silent.post()

    assert "idempotency-key" not in scene.server.received[0].headers
    assert not {"idempotency-key", "tidegate-attempt", "prefer"} & set(silent.server.received[0].headers)


@every_stack
async def test_the_server_is_told_how_long_the_caller_stays(stack: Stack) -> None:
    """`Prefer: wait` is what is left of the deadline, in whole seconds."""
    scene = Scene(stack, refuse(3), policy=RetryPolicy(deadline_s=30))

    await scene.post()

    assert [request.headers["prefer"] for request in scene.server.received] == ["wait=30", "wait=26"]


@every_stack
@pytest.mark.parametrize(
    ("callers", "sent"),
    [
        ("return=minimal, respond-async", "return=minimal, respond-async, wait=60"),
        ("wait=5, return=minimal", "return=minimal, wait=60"),
        ("handling=lenient; wait=5, Wait = 7", "handling=lenient; wait=5, wait=60"),
    ],
)
async def test_what_else_the_caller_prefers_stays(stack: Stack, callers: str, sent: str) -> None:
    """`Prefer` is shared with others: only how long the caller stays is said anew, with each attempt."""
    scene = Scene(stack, refuse(1), policy=RetryPolicy(deadline_s=60))
    await scene.get(headers={"prefer": callers})

    first, second = (request.headers["prefer"] for request in scene.server.received)
    assert (first, second) == (sent, sent.removesuffix("60") + "58")


@every_stack
async def test_the_deadline_includes_the_waits(stack: Stack) -> None:
    """A wait that does not fit what is left of the deadline ends the call at once."""
    scene = Scene(stack, refuse(6), refuse(6), policy=RetryPolicy(deadline_s=10))

    with pytest.raises(RateLimited) as caught:
        await scene.post()

    assert caught.value.why is Why.OVER_BUDGET
    assert sum(scene.clock.waits) == pytest.approx(6.5)


@every_stack
async def test_an_attempt_is_cut_by_the_deadline_and_the_body_is_not(stack: Stack) -> None:
    """While an attempt runs its time-outs end with the deadline; once the answer began they are the caller's
    again.
    """
    seen: list[dict[str, Any]] = []
    scene = Scene(stack, refuse(3), policy=RetryPolicy(deadline_s=10))
    handler = scene.caller.client._transport._inner.handler

    def spy(request: Any) -> Any:
        seen.append(request.extensions["timeout"] | {"same": request.extensions["timeout"]})
        return handler(request)

    scene.caller.client._transport._inner.handler = spy
    await scene.post(timeout=stack.library.Timeout(60, connect=2))

    assert seen[0]["read"] == pytest.approx(10)
    assert seen[0]["connect"] == 2
    assert seen[1]["read"] == pytest.approx(6.5)
    assert seen[1]["same"]["read"] == 60


@every_stack
async def test_call_options_change_the_calls_inside(stack: Stack) -> None:
    """Policy and listener can be set for a block of code, through any client; the inner block wins."""
    heard: list[Any] = []
    scene = Scene(stack, refuse(50), refuse(50), refuse(1))

    with call_options(wait_budget_s=10, on_wait=heard.append):
        with pytest.raises(RateLimited):
            await scene.post()
        scene.clock.advance(60)
        with call_options(wait_budget_s=100):
            await scene.post()

    assert [event.wait_s for event in heard] == [pytest.approx(50.5), pytest.approx(1.5)]
    assert scene.events == []


def test_call_options_refuse_what_the_policy_refuses() -> None:
    """A bad value is an error where it is written."""
    with pytest.raises(ValueError, match="deadline_s is -1"), call_options(deadline_s=-1):
        pass
    with pytest.raises(TypeError, match="patience"), call_options(patience=3):
        pass


@every_stack
async def test_the_wait_is_told_as_it_begins(stack: Stack) -> None:
    """The event says why, how long, until when, which attempt of how many, and where."""
    scene = Scene(stack, refuse(3))
    began = scene.clock.now
    await scene.post()

    (event,) = scene.events
    assert (event.reason, event.scope, event.source) == ("queue_full", "tenant", "retry-after")
    assert (event.attempt, event.max_attempts, event.origin) == (2, 10, "http://engine")
    assert event.wait_s == pytest.approx(3.5)
    assert event.until == pytest.approx(began + 3.5)


@every_stack
async def test_a_listener_that_fails_breaks_nothing(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """What a listener raises is logged; the call goes on."""

    def broken(event: Any) -> None:
        raise RuntimeError("listener")

    scene = Scene(stack, refuse(1), on_wait=broken)

    assert (await scene.post()).status_code == 200
    assert "on_wait listener failed" in caplog.text
