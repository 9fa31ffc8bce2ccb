"""An exception planted anywhere in the gate: the request is still answered, and the fault is told."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tidegate.core
from tests.server.bed import Level, Raw, bed, until
from tidegate.asgi import waiting
from tidegate.asgi.faults import PASS_THROUGH_S, TRIP_COUNT
from tidegate.asgi.types import Message
from tidegate.telemetry.events import EventKind

# The vocabulary and the options hold no behaviour that runs within a request.
VALUES_ONLY = {"__init__", "decisions", "options", "reading"}
CORE = sorted(
    path.stem for path in Path(tidegate.core.__file__).parent.glob("*.py") if path.stem not in VALUES_ONLY
)


class Planted(RuntimeError):
    """The bug."""


def explode(*args: Any, **kwargs: Any) -> Any:
    raise Planted("planted")


def behaviours(module: Any) -> Iterator[tuple[Any, str]]:
    """Every function and method that the module itself defines, but for constructors."""
    for name, value in list(vars(module).items()):
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            yield module, name
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            for attribute, member in list(vars(value).items()):
                if inspect.isfunction(member) and not attribute.startswith("__"):
                    yield value, attribute


@pytest.mark.parametrize("name", CORE)
async def test_an_exception_in_this_core_module_refuses_nobody(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every behaviour of the module breaks at once; callers do not notice."""
    async with bed() as b:
        assert (await b.post()).status_code == 200
        module = import_module(f"tidegate.core.{name}")
        for owner, attribute in behaviours(module):
            monkeypatch.setattr(owner, attribute, explode)
        statuses = [(await b.post()).status_code for _ in range(TRIP_COUNT * 2)]
        assert statuses == [200] * len(statuses)


async def test_a_fault_is_counted_once_and_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request, one fault, one event."""
    async with bed() as b:
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        assert (await b.post()).status_code == 200
        (fault,) = [event for event in b.events if event.kind is EventKind.FAULT]
        assert fault.reason == "offer"
        assert "Planted: planted" in fault.detail


async def test_a_lease_whose_release_met_a_fault_is_given_back_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One fault in a million must not shrink the engine for ever."""
    monkeypatch.setattr(waiting, "RELEASE_AGAIN_S", 0.01)
    async with bed() as b:
        with monkeypatch.context() as planted:
            planted.setattr(b.runtime.room.gate, "release", explode)
            assert (await b.post()).status_code == 200
        assert b.runtime.statistics().running == 1
        await until(lambda: b.runtime.statistics().running == 0)
        assert b.count(EventKind.FAULT) == 1


async def test_closed_answers_503_with_a_time_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked for closed gets an honest refusal, not a 500."""
    async with bed(on_internal_error="closed") as b:
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        response = await b.post()
        assert response.status_code == 503
        assert response.json()["error"]["reason"] == "gate_fault"
        assert int(response.headers["retry-after"]) >= 1
        assert b.app.started == 0


async def test_past_a_broken_gate_there_is_still_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open does not mean unbounded."""
    async with bed(internal_error_concurrency=2) as b:
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        b.app.go.clear()
        inside = [b.send(), b.send()]
        await until(lambda: b.app.running == 2)
        assert (await b.post()).status_code == 503
        b.app.go.set()
        assert [(await sent).status_code for sent in inside] == [200, 200]
        assert (await b.post()).status_code == 200


async def test_faults_that_pile_up_open_the_gate_and_a_fresh_gate_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The opening is said; after its time the gate works again."""
    offset = 0.0
    async with bed() as b:
        faults = b.runtime.faults
        real = faults._clock
        monkeypatch.setattr(faults, "_clock", lambda: real() + offset)
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        for _ in range(TRIP_COUNT):
            await b.post()
        assert b.count(EventKind.PASS_THROUGH) == 1
        before = faults.count
        assert (await b.post()).status_code == 200
        assert faults.count == before, "while it passes everything through, the gate is not asked"
        offset = PASS_THROUGH_S + 1
        assert (await b.post()).status_code == 200
        assert b.count(EventKind.PASS_THROUGH) == 2
        assert b.runtime.statistics().admitted == 1, "a fresh gate has admitted it"


async def test_a_gate_that_opened_itself_still_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A herd at a broken gate does not reach the engine as a herd."""
    async with bed(internal_error_concurrency=2) as b:
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        for _ in range(TRIP_COUNT):
            await b.post()
        assert b.runtime.faults.is_passing_through()
        b.app.go.clear()
        inside = [b.send(), b.send()]
        await until(lambda: b.app.running == 2)
        above = await b.post()
        assert (above.status_code, above.json()["error"]["reason"]) == (503, "gate_fault")
        assert "retry-after" in above.headers
        b.app.go.set()
        assert [(await sent).status_code for sent in inside] == [200, 200]


@pytest.mark.parametrize("operation", ["advance", "observe", "release", "cancel"])
async def test_a_fault_while_others_wait_leaves_nobody_hanging(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers, readings and hand-backs break too; whoever waits goes on by the fault policy."""
    async with bed(level=Level(kv_usage=0.97)) as b:
        waiting = [b.send() for _ in range(3)]
        await until(lambda: b.runtime.statistics().queued == 3)
        monkeypatch.setattr(b.runtime.room.gate, operation, explode)
        if operation == "advance":
            # Else a reading may let all of them in before any timer runs.
            await until(lambda: b.runtime.faults.count > 0)
        b.level.kv_usage = 0.0
        if operation in ("release", "cancel"):
            monkeypatch.undo()
            monkeypatch.setattr(b.runtime.room.gate, operation, explode)
            b.runtime.room.leave(10_000) if operation == "cancel" else b.runtime.room.release(10_000, None)
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert b.runtime.faults.count >= 1


async def test_a_fault_between_the_grant_and_the_app_gives_the_lease_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request passes by the fault policy; the lease that nobody would end is not left behind."""
    async with bed() as b:
        monkeypatch.setattr("tidegate.asgi.exchange.Meter", explode)
        assert (await b.post()).status_code == 200
        assert b.runtime.faults.count == 1
        assert b.runtime.statistics().running == 0


async def test_a_task_cancelled_between_its_grant_and_the_app_gives_the_lease_back() -> None:
    """A server may cancel a request's task while its last comment hangs on a slow reader."""
    hangs = asyncio.Event()

    class SlowReader(Raw):
        async def _send(self, message: Message) -> None:
            if message["type"] == "http.response.body":
                hangs.set()
                await asyncio.Event().wait()

    async with bed(level=Level(kv_usage=0.97), keepalive={"after_s": 0.01, "interval_s": 0.01}) as b:
        raw = SlowReader(b.gate, b'{"prompt": "hello", "stream": true}')
        await asyncio.wait_for(hangs.wait(), 60)
        b.level.kv_usage = 0.0
        await until(lambda: b.runtime.statistics().running == 1)
        raw.task.cancel()
        await asyncio.gather(raw.task, return_exceptions=True)
        assert b.runtime.statistics().running == 0


@pytest.mark.parametrize("broken", ["feed", "usage"])
async def test_a_fault_of_the_counter_does_not_touch_the_stream(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the dispatch our errors cost a count, never a byte."""
    from tidegate.asgi.stream import OutputCounter

    replacement: Callable[..., Any] | property = explode if broken == "feed" else property(explode)
    monkeypatch.setattr(OutputCounter, broken, replacement)
    async with bed() as b:
        b.app.chunks = [b'{"usage": {"prompt_tokens": 3, ', b'"completion_tokens": 2}}']
        response = await b.post()
        assert response.json()["usage"]["completion_tokens"] == 2
        assert b.runtime.statistics().running == 0
        assert b.runtime.faults.count == 1


async def test_a_fault_of_the_short_way_does_not_touch_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer in one piece is read in a shorter way, which may fail as well."""
    monkeypatch.setattr("tidegate.asgi.metering.read_answer", explode)
    async with bed() as b:
        assert (await b.post()).json()["usage"]["completion_tokens"] == 2
        assert b.runtime.statistics().running == 0
        assert b.runtime.faults.count == 1


_ENDLESS = b"9" * 400
_ENDLESS_USAGE = b'{"usage": {"prompt_tokens": %b, "completion_tokens": %b}}' % (_ENDLESS, _ENDLESS)


@pytest.mark.parametrize(
    ("path", "request_fields", "chunks"),
    [
        ("/v1/completions", {"prompt": "x"}, [_ENDLESS_USAGE]),
        ("/v1/completions", {"prompt": "x"}, [_ENDLESS_USAGE[:9], _ENDLESS_USAGE[9:]]),
        ("/v1/completions", {"prompt": "x", "stream": True}, [b"data: %b\n\n" % _ENDLESS_USAGE]),
        ("/generate", {"text": "x"}, [b'{"meta_info": {"completion_tokens": %b}}' % _ENDLESS]),
        (
            "/v1/responses",
            {"input": "x", "background": True},
            [b'{"id": "resp_1", "status": "completed", "usage": {"output_tokens": %b}}' % _ENDLESS],
        ),
    ],
)
async def test_a_report_that_no_number_can_hold_is_none(
    path: str, request_fields: dict[str, Any], chunks: list[bytes]
) -> None:
    """An app's own figure is not believed beyond reason, and those who wait do not pay for it."""
    async with bed(default_tenant={"max_concurrency": 1}) as b:
        b.app.chunks = chunks
        b.app.go.clear()
        requests = [b.send(request_fields, path=path) for _ in range(2)]
        await until(lambda: b.runtime.statistics().queued == 1)
        b.app.go.set()
        assert [(await request).status_code for request in requests] == [200, 200]
        assert b.runtime.faults.count == 0
        assert b.runtime.statistics().running == 0


async def test_a_hook_that_raises_is_dropped_and_admission_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry never decides the fate of a request."""
    async with bed() as b:
        b.runtime.hooks.add(explode)
        assert (await b.post()).status_code == 200
        assert (await b.post()).status_code == 200
        assert caplog.text.count("Telemetry hook") == 1
