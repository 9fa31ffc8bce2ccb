"""Who may look at the operator's page: what strangers send is judged, never an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.asgi.types import Scope
from tidegate.console.access import Access, access_of
from tidegate.console.options import ConsoleOptions

OPTIONS = ConsoleOptions.model_validate({"admin_token": "correct horse battery"})


def scope(authorization: bytes) -> Scope:
    return {"client": ("192.0.2.1", 1), "http_version": "1.1", "headers": [(b"authorization", authorization)]}


@pytest.mark.parametrize("token", [b"\xe9\xe9", b"%%%", b"/w==", b"", b"YQ=="])
@pytest.mark.parametrize("scheme", [b"Basic", b"basic", b"Bearer", b"\xff"])
def test_whatever_is_no_token_is_asked_for_one(scheme: bytes, token: bytes) -> None:
    """Not ASCII, not base64, not text, empty, without a colon."""
    assert access_of(scope(scheme + b" " + token), OPTIONS) is Access.CHALLENGE


@given(st.binary(max_size=40))
def test_no_header_is_an_error(value: bytes) -> None:
    """It is read before anything that could answer one."""
    assert access_of(scope(b"Basic " + value), OPTIONS) is Access.CHALLENGE
