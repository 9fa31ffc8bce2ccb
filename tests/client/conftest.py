"""Fixtures shared by the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.real_server import ScriptApp, real_server
from tidegate_client.board import Board


@pytest.fixture(scope="session")
def _running_server() -> Iterator[ScriptApp]:
    with real_server() as app:
        yield app


@pytest.fixture
def engine(_running_server: ScriptApp, own_board: None) -> ScriptApp:
    """A real server with an empty script, of which the process remembers nothing."""
    _running_server.script.clear()
    _running_server.received.clear()
    return _running_server


@pytest.fixture
def own_board(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test starts with no memory of any server."""
    monkeypatch.setattr("tidegate_client.setup.SHARED", Board())
