"""The HTTP reference says what the code does, no more and no less."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tidegate.asgi import cors, fields, headers, identity, replies, reply_bodies
from tidegate.asgi.background import BOUND_S
from tidegate.asgi.classify import Dialect, GuardOptions, Route, RouteTable
from tidegate.asgi.cors import CorsOptions
from tidegate.asgi.keepalive import KeptStream
from tidegate.asgi.replies import Replier, ReplyOptions, refusal_status
from tidegate.core.decisions import Reason, Refuse
from tidegate.core.quota import Left

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the first table after that text, without code marks."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    rows = list(itertools.dropwhile(lambda line: not line.startswith("|"), lines))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), rows))[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def column(heading: str, index: int = 0) -> list[str]:
    return [row[index] for row in table(heading)]


def test_routes() -> None:
    """Every guarded route is listed with its dialect, and every listed one is guarded."""
    listed = {row[0]: (row[1], row[2] == "yes") for row in table("## What is guarded")}
    routes = [RouteTable().match({"type": "http", "method": "POST", "path": path}) for path in listed]
    assert {route.label: (route.dialect.value, route.generates) for route in routes if route} == listed
    dialects = {route.dialect for route in routes if route}
    assert dialects == set(Dialect) - {Dialect.UNKNOWN_POST, Dialect.OPENAI_REALTIME}


def test_reasons_and_statuses() -> None:
    """Every reason stands there with its status in both configurations."""
    listed = {row[0]: (int(row[1]), int(row[2])) for row in table("## Refusals")}
    assert listed == {
        reason.value: (refusal_status(reason, 429), refusal_status(reason, 503)) for reason in Reason
    }


def test_other_answers() -> None:
    """Problems that are no refusals, by the status they come with."""
    replier = Replier(ReplyOptions(), CorsOptions(), lambda: 0.0)
    made = {"misconfigured": {503}}
    for status in (400, 401, 408, 413):
        body = replier.bad_request(status, "x", {"type": "http"}, None).body.decode()
        found = re.search(r'"reason":"(\w+)"', body)
        assert found is not None
        made.setdefault(found[1], set()).add(status)
    listed = {
        row[0]: {int(part) for part in row[1].split(",")} for row in table("more answers are Tidegate's own")
    }
    assert listed == made


def test_codes_and_types() -> None:
    """By status, for OpenAI and for Anthropic."""
    listed = {int(row[0]): tuple(row[1:]) for row in table("### Bodies")}
    assert listed == reply_bodies._KINDS


def _written() -> set[str]:
    """The names of all headers that any of our answers can have."""
    options = ReplyOptions(send_policy=True)
    replier = Replier(
        options, CorsOptions(allow_origins=("https://a.example",), allow_credentials=True), lambda: 0.0
    )
    scope: dict[str, Any] = {
        "type": "http",
        "headers": [(b"origin", b"https://a.example"), (b"prefer", b"wait=5")],
    }
    route = Route(Dialect.OPENAI_CHAT, True, "x")
    answers = [replier.bad_request(status, "x", scope, route) for status in (400, 401, 408, 413)]
    for reason in Reason:
        refuse = Refuse(ticket=1, reason=reason, scope="model", retry_after_s=1.0, limit=4)
        answers.append(replier.refusal(refuse, scope, route))
    return {name.decode() for answer in answers for name, _ in answer.headers}


def test_response_headers() -> None:
    """Every header we write is listed, and no other."""
    assert {name.lower() for name in column("### Response headers of a refusal")} == _written()
    admitted = {name.lower() for name in column("## Response headers of an admitted request")}
    ours = [headers.server_timing(0.0), *headers.preference_applied([(b"prefer", b"wait=5")])]
    ours += headers.quota_headers([Left("requests", 1.0, 1.0, 0.0)], send_policy=True)
    assert admitted == {"access-control-expose-headers", *(name.decode() for name, _ in ours)}


def test_exposed_headers_are_all_listed() -> None:
    """What a page may read is on this page."""
    listed = column("### Response headers of a refusal") + column(
        "## Response headers of an admitted request"
    )
    assert {name.lower() for name in cors.EXPOSED} <= {name.lower() for name in listed}


def test_request_headers() -> None:
    """Every header that our code looks for is listed, and every listed one is looked for."""
    folder = Path(replies.__file__).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    nested = r"\((?:[^()]|\([^()]*\))*\)"
    call = rf"(?:first_header|list_header|header_lines)\((?:[^()]|{nested})*"
    looked_for = {name for found in re.findall(call, text) for name in re.findall(r'b"([a-z-]+)"', found)}
    looked_for |= {name.decode() for name in replies._WISHES | fields.PRIORITY_HEADERS}
    looked_for |= {identity.PRIORITY_HEADER.decode()}
    looked_for |= {"authorization", "x-api-key", "api-key", "tidegate-attempt", "x-stainless-retry-count"}
    looked_for |= {"content-length"}  # in a loop of its own, in types.py
    looked_for -= {"access-control-allow-origin", "access-control-expose-headers"}  # of the app's answer,
    looked_for -= {"content-type", "content-encoding"}  # as are these
    assert {name.lower() for name in column("## Request headers that are read")} == looked_for


def test_named_settings_exist() -> None:
    """Every `group.option` on the page is an option."""
    from tidegate.settings import Settings

    for group, name in set(re.findall(r"`([a-z]+)\.([a-z_]+)(?: = \w+)?`", PAGE)):
        if group == "error":  # of the body
            continue
        annotation = Settings.model_fields[group].annotation
        assert annotation is not None, group
        assert name in getattr(annotation, "model_fields", getattr(annotation, "__dataclass_fields__", {})), (
            name
        )


@pytest.mark.parametrize("name", sorted({headers.bound_name(reason) for reason in Reason}))
def test_policy_names(name: str) -> None:
    """Under which `RateLimit` speaks of its bounds."""
    assert f"`{name}`" in PAGE


def test_field_policy_fields_are_listed() -> None:
    """Each field with which the policy deals."""
    listed = " ".join(column("## Bodies and their cost"))
    for name in (
        *fields._PARALLEL,
        "priority",
        "prompt_logprobs",
        "echo",
        "use_beam_search",
        "logprob_start_len",
    ):
        assert name in listed


async def test_comments_while_waiting_look_as_shown() -> None:
    """The example on the page is what is sent; so is the bound of background responses."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await KeptStream(send, Dialect.OPENAI_CHAT, []).tell(3, 12.0)
    assert sent[1]["body"].decode().strip() in PAGE
    assert f"for {BOUND_S:g} s" in PAGE


def test_exempt_examples_are_exempt() -> None:
    """What the page says passes does pass, even when unknown POSTs are guarded."""
    routes = RouteTable(GuardOptions(guard_unknown_posts=True))
    for path in ("/tokenize", "/v1/chat/completions/render", "/v1/responses/r/cancel", "/abort_request"):
        assert routes.match({"type": "http", "method": "POST", "path": path}) is None
