"""The server's half of the wire table, and the client's reader on everything the server writes."""

from __future__ import annotations

import pytest

from tests.wire_cases import WRITTEN_BY_TIDEGATE, WireCase
from tidegate.asgi.headers import bound_name, refusal_headers
from tidegate.asgi.replies import ReplyOptions, build_reply
from tidegate.core.decisions import Reason, Refuse
from tidegate_client.fields import advice_from, refusal_from

_OPTIONAL = {"x-should-retry", "ratelimit-policy"}  # the table shows them as a client may meet them


def _reason(limit_name: str) -> Reason:
    return next((reason for reason in Reason if bound_name(reason) == limit_name), Reason.QUEUE_FULL)


@pytest.mark.parametrize("case", WRITTEN_BY_TIDEGATE, ids=lambda case: case.name)
def test_writes_what_the_table_says(case: WireCase) -> None:
    """Every row that names a refusal is what we write for it."""
    made = case.written_from or {}
    refuse = Refuse(
        ticket=1,
        reason=_reason(made["limit_name"]),
        scope="model",
        retry_after_s=made["wait_s"],
        limit=made["limit"],
        remaining=made["remaining"],
    )
    lines = refusal_headers(refuse, wall_now_s=made["wall_now"])
    ours = {name.decode(): value.decode() for name, value in lines}
    expected = {name.lower(): value for name, value in case.headers if name.lower() not in _OPTIONAL}
    if bound_name(refuse.reason) != made["limit_name"]:
        del expected["ratelimit"]
    assert expected.items() <= ours.items()
    assert ours["x-should-retry"] == "true"


@pytest.mark.parametrize("reason", Reason)
def test_the_client_reads_what_we_write(reason: Reason) -> None:
    """Wait, will to retry, reason and scope arrive unchanged; the two halves meet on the wire only."""
    refuse = Refuse(ticket=1, reason=reason, scope="class", retry_after_s=2.3705, limit=64)
    request = {"type": "http", "method": "POST", "headers": []}
    reply = build_reply(refuse, request, None, ReplyOptions(send_policy=True), 1_795_954_896.0)
    lines = [(name.decode(), value.decode()) for name, value in reply.headers]
    advice, refusal = advice_from(lines, 1_795_954_896.0), refusal_from(reply.body)
    assert (refusal.reason, refusal.scope) == (reason.value, "class")
    if reason in (Reason.SUPERSEDED, Reason.PROMPT_TOO_LARGE, Reason.COST_ABOVE_BURST):
        assert (advice.wait_s, advice.should_retry) == (None, False)
    else:
        assert (advice.wait_s, advice.should_retry) == (2.371, True)
