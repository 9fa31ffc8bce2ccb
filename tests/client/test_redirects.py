"""A redirect that names a time is not followed before it (RFC 9110, section 10.2.3)."""

from __future__ import annotations

import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client import RateLimited, RetryPolicy, Why
from tidegate_client.testing import Reply, answer, refuse

THERE = {"location": "http://other/there", "retry-after": "5"}


@every_stack
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_at_its_time(stack: Stack, status: int) -> None:
    """Five seconds and jitter before the next hop; no retry, nobody else waits, the caller is told."""
    scene = Scene(stack, refuse(1), Reply(status, THERE))

    response = await scene.get(follow_redirects=True)

    assert response.status_code == 200
    assert scene.gaps == [pytest.approx(1.5), pytest.approx(5.5)]
    numbers = [request.headers.get("tidegate-attempt") for request in scene.server.received]
    assert numbers == [None, "2", None]
    assert [(event.reason, event.origin) for event in scene.events[1:]] == [("redirected", "http://other")]
    await scene.get("http://other/elsewhere")
    assert scene.gaps[-1] == 0


@every_stack
async def test_a_redirect_beyond_the_budget_is_an_error_at_once(stack: Stack) -> None:
    """An hour before the next hop: the typed error says so, and nothing waits."""
    scene = Scene(stack, Reply(302, THERE | {"retry-after": "3600"}))
    with pytest.raises(RateLimited) as caught:
        await scene.get(follow_redirects=True)

    assert caught.value.why is Why.OVER_BUDGET
    assert caught.value.retry_after == pytest.approx(3600.5)
    assert scene.clock.waits == []


@every_stack
async def test_a_redirect_that_is_not_followed_is_an_answer(stack: Stack) -> None:
    """Without follow_redirects it is delivered at once, and so is one that names no time."""
    scene = Scene(stack, Reply(302, THERE), Reply(302, {"location": "http://other/"}), answer())
    assert (await scene.get()).status_code == 302
    assert (await scene.get(follow_redirects=True)).status_code == 200

    assert scene.gaps == [0, 0]
    assert scene.clock.waits == []


@every_stack
async def test_a_request_sent_again_after_its_redirect_counts_anew(stack: Stack) -> None:
    """The time named belongs to that redirect: the same request object is free once it has passed."""
    scene = Scene(stack, Reply(302, THERE), policy=RetryPolicy(wait_budget_s=1))
    request = scene.caller.client.build_request("GET", "http://engine/")
    for _ in range(2):
        sent = scene.caller.client.send(request)
        response = await sent if stack.is_async else sent
        scene.clock.advance(10)

    assert response.status_code == 200
    assert scene.clock.waits == []
