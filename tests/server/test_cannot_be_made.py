"""A server on which the gate cannot be made: said at start; what is not guarded works all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.bed import App
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.types import Message
from tidegate.telemetry import prometheus


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AdmissionMiddleware:
    """The directory in which processes share their metrics is not there: prometheus_client raises."""

    def without_directory(*_: Any) -> Any:
        return (tmp_path / "gone" / "gauge_1.db").open("rb")

    monkeypatch.setattr(prometheus, "prometheus_hook", without_directory)
    return AdmissionMiddleware(App(), settings=Settings.load())


async def test_without_a_lifespan_the_rest_of_the_app_lives(
    gate: AdmissionMiddleware, caplog: pytest.LogCaptureFixture
) -> None:
    """An orchestrator that asks for health must not kill it; the log has the trace."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://gate") as client:
        assert (await client.get("/health")).status_code == 200
        refused = await client.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["reason"] == "misconfigured"
        assert "gone" not in refused.text
    assert sum(record.exc_info is not None for record in caplog.records) == 1


async def test_with_a_lifespan_the_start_fails(gate: AdmissionMiddleware) -> None:
    """An error that leaves a lifespan would be taken for an app without one, whose own start never runs."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        sent.append(message)

    await gate({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "FileNotFoundError" in sent[0]["message"]
