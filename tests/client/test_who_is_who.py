"""On whose behalf a call is made: what one caller was told holds for that one alone, and for all its calls.
And to whom.
"""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client import RateLimited, RetryPolicy
from tidegate_client.testing import Board, FakeClock, refuse

AWS = (
    "AWS4-HMAC-SHA256 Credential={}/20261130/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature={}"
)
DIGEST = 'Digest username="{}", realm="r", nonce="n", uri="/", cnonce="{}", response="0", nc=00000001'


def said(name: str, value: str) -> dict[str, Any]:
    """Request options that carry `value` as the header, or the query's member, of this name."""
    return {"params": {name[1:]: value}} if name.startswith("?") else {"headers": {name: value}}


STRANGERS = [
    *[
        (said(name, "a"), said(name, "b"))
        for name in ("authorization", "x-api-key", "x-goog-api-key", "ocp-apim-subscription-key", "?api_key")
    ],
    (said("?key", 39 * "a"), said("?key", 39 * "b")),
    (said("authorization", AWS.format("A", "1")), said("authorization", AWS.format("B", "1"))),
    (said("authorization", DIGEST.format("a", "1")), said("authorization", DIGEST.format("b", "1"))),
]
THE_SAME = [
    (said("authorization", AWS.format("A", "1")), said("authorization", AWS.format("A", "2"))),
    (said("authorization", DIGEST.format("a", "1")), said("authorization", DIGEST.format("a", "2"))),
    (
        said("authorization", 'Signature keyId="a",signature="1"'),
        said("authorization", 'Signature keyId="a"'),
    ),
    (said("?page", "1"), said("?page", "2")),
    (said("?key", "user-1"), said("?key", "user-2")),
]
POLICY = RetryPolicy(wait_budget_s=10)


@every_stack
@pytest.mark.parametrize(("refused", "spared"), STRANGERS)
async def test_a_refusal_of_one_credential_holds_up_no_other(
    stack: Stack, refused: dict[str, Any], spared: dict[str, Any]
) -> None:
    """Wherever an API takes its keys."""
    scene = Scene(stack, refuse(60), policy=POLICY)
    with pytest.raises(RateLimited):
        await scene.get(**refused)

    assert (await scene.get(**spared)).status_code == 200


@every_stack
@pytest.mark.parametrize(("refused", "held"), THE_SAME)
async def test_a_signature_that_differs_is_no_stranger(
    stack: Stack, refused: dict[str, Any], held: dict[str, Any]
) -> None:
    """Who signs each request anew is one caller all the same."""
    scene = Scene(stack, refuse(60), policy=POLICY)
    for options in (refused, held):
        with pytest.raises(RateLimited):
            await scene.get(**options)

    assert len(scene.server.received) == 1


@every_stack
@pytest.mark.parametrize(("cause", "attempts"), [(ssl.SSLCertVerificationError, 1), (ssl.SSLEOFError, 3)])
async def test_a_server_that_is_not_who_it_says_is_told_at_once(
    stack: Stack, cause: type[ssl.SSLError], attempts: int
) -> None:
    """Its certificate will be no better in a minute; a handshake that broke off may be."""
    sent = []

    def shake_hands(request: Any) -> Any:
        sent.append(request)
        try:
            raise OSError("as the backend says it") from cause("handshake")
        except OSError as error:
            raise stack.library.ConnectError("no connection", request=request) from error

    inner = stack.library.MockTransport(shake_hands)
    caller = stack.caller(inner, FakeClock(), Board(), policy=RetryPolicy(max_attempts=3))
    with pytest.raises(stack.library.ConnectError):
        await caller.request("GET", "https://engine/")

    assert len(sent) == attempts


@every_stack
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"model": 7}'])
async def test_a_model_that_cannot_be_read_is_one_of_no_name(stack: Stack, content: bytes) -> None:
    """A refusal of a model holds up the other calls whose model nobody can tell, and nobody raises."""
    scene = Scene(stack, refuse(3, scope="model"))
    await scene.post(json=None, content=content)
    await scene.post(json=None, content=content)

    assert scene.gaps[0] >= 3
